"""The computations on the flights: functions from data frames to data frames.

- `hourly`: departures by origin and hour, joined with the weather
- `chains`: delays that an aircraft carries from one flight to the next
"""
