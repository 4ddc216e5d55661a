// Rates from counters that come with their times. Pure.
//
// The broker sends a frame only when something changed. So between two frames a counter stands still, and its value at
// any moment is known. A rate is the rise over the last WINDOW_MS, divided by that time.

export const WINDOW_MS = 4000;
export const QUANTILE_MS = 30_000;
const KEPT_MS = QUANTILE_MS + WINDOW_MS;

export class Meter {
  constructor() {
    this.samples = [];
  }

  // Note that the counter had this value at this time. A lower value is a counter that began again.
  push(at, value) {
    const last = this.samples.at(-1);
    if (last && value < last.value) this.samples = [{ at, value: 0 }];
    if (last && value === last.value) return;
    this.samples.push({ at, value });
    while (this.samples.length > 2 && this.samples[1].at < at - KEPT_MS) this.samples.shift();
  }

  valueAt(at) {
    let value = this.samples[0]?.value ?? 0;
    for (const sample of this.samples) {
      if (sample.at > at) break;
      value = sample.value;
    }
    return value;
  }

  // Per second. A meter that is younger than the window divides by its age.
  rate(now) {
    if (this.samples.length < 2) return 0;
    const first = this.samples[0].at;
    const from = Math.max(first, now - WINDOW_MS);
    const age = Math.max(1000, now - from);
    return (this.valueAt(now) - this.valueAt(from)) / (age / 1000);
  }
}

// Meters by name, made when they are first used.
export class Meters {
  constructor() {
    this.byName = new Map();
  }

  push(at, name, value) {
    if (!this.byName.has(name)) this.byName.set(name, new Meter());
    this.byName.get(name).push(at, value);
  }

  rate(now, name) {
    return this.byName.get(name)?.rate(now) ?? 0;
  }

  sum(now, suffix) {
    let total = 0;
    for (const [name, meter] of this.byName) if (name.endsWith(suffix)) total += meter.rate(now);
    return total;
  }

  // Forget the meters whose names do not begin with one of these.
  keep(prefixes) {
    for (const name of this.byName.keys()) {
      if (!prefixes.some((prefix) => name.startsWith(prefix))) this.byName.delete(name);
    }
  }

  // The duration below which a share of those counted in the last WINDOW_MS is, from buckets named `prefix 0`, `prefix 1`
  // and so on. Within a bucket it is guessed by proportion. Null if none was counted.
  quantile(now, suffix, bounds, share) {
    const counts = [...bounds, Infinity].map((_bound, index) => {
      let rise = 0;
      for (const [name, meter] of this.byName) {
        if (name.endsWith(` ${suffix} ${index}`)) rise += meter.valueAt(now) - meter.valueAt(now - QUANTILE_MS);
      }
      return rise;
    });
    const total = counts.reduce((sum, count) => sum + count, 0);
    if (!total) return null;
    let left = share * total;
    for (let index = 0; index < counts.length; index += 1) {
      if (left <= counts[index]) {
        const low = index === 0 ? 0 : bounds[index - 1];
        return index === bounds.length ? low : low + ((bounds[index] - low) * left) / counts[index];
      }
      left -= counts[index];
    }
    return bounds.at(-1);
  }

  isMoving(now) {
    for (const meter of this.byName.values()) if (meter.rate(now) > 0) return true;
    return false;
  }
}
