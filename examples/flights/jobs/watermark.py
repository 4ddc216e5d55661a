"""How late events may come, for all jobs.

A watermark is a promise: behind it nothing comes any more. It is the latest event time of all micro-batches so far,
minus this delay; windows and timers before it are closed, and events before it are dropped. So the delay has to be as
long as event times may go back between one micro-batch and a later one. Here they do for two reasons:

- What happens, happens late. Flights are sent by their schedule, but leave up to 21.7 hours behind it, and land up to
  11 hours later: 32.4 hours in all, at the most, in 2013. And some leave early, by up to 43 minutes. 34 hours.
- What is sent between two runs of the job, it may read in any order. An aircraft's day is one transaction, so its
  evening is there before the mornings of others; and the segments of a topic are read side by side, but what a segment
  has become after a split or merge in a micro-batch of its own, after it. So up to `DAYS_PER_RUN` days.

A job that follows a live topic has the first reason only. Who replays a topic pays for the order it is replayed in.
"""

DAYS_PER_RUN = 2
"""Days that are sent between two runs of the job."""

WATERMARK_DELAY = f"{DAYS_PER_RUN * 24 + 34} hours"
