//! [`Gain`]: whether merging the requests of a signature makes them cheaper.

use crate::manager::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Merged rows must take at most this part of the time of rows alone: a request of a batch also waits for the others.
const WORTH: f64 = 0.9;
/// Requests in a row that are treated alike while both ways are unknown, and when the other way is tried again.
const TRIAL: u32 = 16;
/// The other way is tried again after that many requests.
const AGAIN: u32 = 4096;
/// Weight of the last batch in the averages.
const WEIGHT: f64 = 0.125;
/// A batch counts for at most this many times what was expected: other programs had its processor.
const BELIEVED: f64 = 4.0;

/// Times of the rows of a signature's requests, alone and merged, as adaptive mode measures them. A network whose row
/// keeps a processor busy gains nothing from others, and loses the caches.
#[derive(Debug, Default)]
pub(crate) struct Gain {
    requests: AtomicU32,
    averages: Mutex<Averages>,
}

#[derive(Debug, Default)]
struct Averages {
    alone: Average,
    merged: Average,
}

/// Averages over batches. Their quotient counts each row alike: batches of two rows, which save little, are many where the
/// load is low, but most rows of a busy server are in large ones.
#[derive(Debug, Default)]
struct Average {
    nanos: f64,
    rows: f64,
}

impl Average {
    /// Nanoseconds of a row, if known.
    fn of_a_row(&self) -> Option<f64> {
        (self.rows > 0.0).then(|| self.nanos / self.rows)
    }

    fn add(&mut self, rows: f64, nanos: f64) {
        let Some(known) = self.of_a_row() else {
            *self = Average { nanos, rows };
            return;
        };
        let nanos = nanos.min(known * rows * BELIEVED);
        self.nanos += (nanos - self.nanos) * WEIGHT;
        self.rows += (rows - self.rows) * WEIGHT;
    }
}

impl Gain {
    /// Returns whether the next request should be merged with others.
    pub(crate) fn merges(&self) -> bool {
        let n = self.requests.fetch_add(1, Ordering::Relaxed);
        let (alone, merged) = {
            let averages = lock(&self.averages);
            (averages.alone.of_a_row(), averages.merged.of_a_row())
        };
        let (Some(alone), Some(merged)) = (alone, merged) else {
            return (n / TRIAL).is_multiple_of(2);
        };
        let is_better = merged < alone * WORTH;
        let is_trial = n % AGAIN < TRIAL;
        is_better != is_trial
    }

    /// Takes the time of a batch into account.
    pub(crate) fn measured(&self, requests: usize, rows: usize, took: Duration) {
        let mut averages = lock(&self.averages);
        let average = match requests {
            1 => &mut averages.alone,
            _ => &mut averages.merged,
        };
        average.add(rows.max(1) as f64, took.as_nanos() as f64);
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

    /// A row alone takes 90 µs; then these batches are measured, of these rows and microseconds.
    fn after(batches: impl IntoIterator<Item = (usize, u64)>) -> Gain {
        let gain = Gain::default();
        (0..TRIAL).for_each(|_| _ = gain.merges());
        for (rows, micros) in [(1, 90)].into_iter().chain(batches) {
            gain.measured(rows, rows, Duration::from_micros(micros));
        }
        gain
    }

    #[test]
    fn counts_rows_not_batches() {
        // As slow as alone; then three times as fast.
        assert!(after([(2, 180), (30, 900)].repeat(40)).merges());
    }

    #[test]
    fn one_slow_batch_changes_nothing() {
        assert!(after([(8, 240), (8, 20_000)]).merges());
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
