//! [`Gain`]: whether merging the requests of a signature makes them cheaper.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Merged rows must take at most this part of the time of rows alone: a request of a batch also waits for the others.
const WORTH: f64 = 0.9;
/// Requests in a row that are treated alike while both ways are unknown, and when the other way is tried again.
const TRIAL: u32 = 16;
/// The other way is tried again after that many requests.
const AGAIN: u32 = 4096;
/// Weight of the last batch in the averages.
const WEIGHT: f64 = 0.125;

/// Times of the rows of a signature's requests, alone and merged, as adaptive mode measures them. A network whose row
/// keeps a processor busy gains nothing from others, and loses the caches.
#[derive(Debug, Default)]
pub(crate) struct Gain {
    requests: AtomicU32,
    /// Averages in nanoseconds, as the bits of a number; 0 if unknown.
    alone: AtomicU64,
    merged: AtomicU64,
}

impl Gain {
    /// Returns whether the next request should be merged with others.
    pub(crate) fn merges(&self) -> bool {
        let n = self.requests.fetch_add(1, Ordering::Relaxed);
        let nanos = |average: &AtomicU64| f64::from_bits(average.load(Ordering::Relaxed));
        let (alone, merged) = (nanos(&self.alone), nanos(&self.merged));
        if alone == 0.0 || merged == 0.0 {
            return (n / TRIAL).is_multiple_of(2);
        }
        let is_better = merged < alone * WORTH;
        let is_trial = n % AGAIN < TRIAL;
        is_better != is_trial
    }

    /// Takes the time of a batch into account.
    pub(crate) fn measured(&self, requests: usize, rows: usize, took: Duration) {
        let average = match requests {
            1 => &self.alone,
            _ => &self.merged,
        };
        let new = took.as_nanos() as f64 / rows.max(1) as f64;
        let old = f64::from_bits(average.load(Ordering::Relaxed));
        let next = match old == 0.0 {
            true => new,
            false => old + (new - old) * WEIGHT,
        };
        // A measurement that another thread makes at the same time may be lost.
        average.store(next.to_bits(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_what_becomes_cheaper() {
        // Microseconds of a row alone and merged, and how many of the next 4096 requests are merged.
        let rows = [(90, 30, 4080), (10, 12, 16), (10, 10, 16), (100, 80, 4080)];
        for (alone, merged, expected) in rows {
            let gain = Gain::default();
            let first: Vec<bool> = (0..2 * TRIAL).map(|_| gain.merges()).collect();
            assert_eq!(first.iter().filter(|m| **m).count(), TRIAL as usize);
            gain.measured(1, 1, Duration::from_micros(alone));
            gain.measured(8, 16, Duration::from_micros(16 * merged));
            let count = (0..AGAIN).filter(|_| gain.merges()).count();
            assert_eq!(count, expected, "{alone} {merged}");
        }
    }

    #[test]
    fn follows_changed_times() {
        let gain = Gain::default();
        gain.measured(1, 1, Duration::from_micros(10));
        gain.measured(2, 2, Duration::from_micros(20));
        (0..TRIAL).for_each(|_| _ = gain.merges());
        assert!(!gain.merges());
        for _ in 0..40 {
            gain.measured(1, 1, Duration::from_micros(40));
        }
        assert!(gain.merges());
    }
}
