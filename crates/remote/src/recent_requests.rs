//! [`RecentRequests`]: tells a retry from a new request.

use crate::master_session::lock;
use ferroflow_base::{Result, aborted};
use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

/// Ids that are kept.
const MAX_IDS: usize = 100_000;

/// The ids of the latest requests.
#[derive(Default)]
pub(crate) struct RecentRequests(Mutex<Ids>);

#[derive(Default)]
struct Ids {
    known: HashSet<i64>,
    order: VecDeque<i64>,
}

impl RecentRequests {
    /// Fails with ABORTED if the request is a retry; id 0 is never one.
    pub(crate) fn reject_duplicate(&self, id: i64, method: &str) -> Result<()> {
        if id == 0 {
            return Ok(());
        }
        let mut ids = lock(&self.0);
        if !ids.known.insert(id) {
            return Err(aborted!(
                "The same {method} request was received twice. request_id: {id}"
            ));
        }
        ids.order.push_back(id);
        if ids.order.len() > MAX_IDS
            && let Some(oldest) = ids.order.pop_front()
        {
            ids.known.remove(&oldest);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_accepted_once() {
        let recent = RecentRequests::default();
        for (id, is_new) in [(1, true), (2, true), (1, false), (0, true), (0, true)] {
            assert_eq!(
                recent.reject_duplicate(id, "RunStep").is_ok(),
                is_new,
                "{id}"
            );
        }
        (10..10 + MAX_IDS as i64).for_each(|id| drop(recent.reject_duplicate(id, "RunStep")));
        assert!(recent.reject_duplicate(1, "RunStep").is_ok(), "forgotten");
    }
}
