//! Collectives: each member contributes a tensor and is answered once all members have arrived.

use ferroflow_base::{Code, Result, Status, cancelled, deadline_exceeded, internal};
use ferroflow_opdef::AsyncCall;
use ferroflow_sync::Registration;
use ferroflow_tensor::Tensor;
use rustc_hash::FxHashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Identifies a group: members of one step with the same keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CollectiveKey {
    /// Step id.
    pub step: u64,
    /// Group key.
    pub group: i64,
    /// Instance key.
    pub instance: i64,
    /// Frame id and iteration: those of a loop run one collective each.
    pub frame: (u64, u64),
}

/// The order of members: by device, then by position in the plan.
pub type Rank = (String, u64);

/// A member that has arrived.
pub struct Member {
    /// Rank of the caller.
    pub rank: Rank,
    /// Its contribution; `None` for a receiver.
    pub part: Option<Tensor>,
    /// The kernel call to complete.
    pub call: AsyncCall,
    id: u64,
    registration: Option<Registration>,
}

/// Computes the results of all members, in the order of their ranks, from their contributions.
pub type CollectiveFn = Box<dyn FnOnce(&[Option<Tensor>]) -> Result<Vec<Tensor>> + Send>;

struct Meeting {
    size: usize,
    members: Vec<Member>,
}

#[derive(Default)]
struct Meetings {
    next_id: u64,
    meetings: FxHashMap<CollectiveKey, Meeting>,
}

fn table() -> MutexGuard<'static, Meetings> {
    static TABLE: OnceLock<Mutex<Meetings>> = OnceLock::new();
    let table = TABLE.get_or_init(Mutex::default);
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a member to a group of `size`. The last one to arrive computes the results with `answer`.
pub fn meet(
    key: CollectiveKey,
    size: usize,
    rank: Rank,
    part: Option<Tensor>,
    call: AsyncCall,
    timeout: Option<Duration>,
    answer: CollectiveFn,
) {
    if let Err(error) = call.cancel.check() {
        return call.finish(Err(error));
    }
    let cancel = match timeout {
        Some(timeout) => call.cancel.clone().with_timeout(timeout),
        None => call.cancel.clone(),
    };
    let mut table_now = table();
    let id = table_now.next_id;
    table_now.next_id += 1;
    let meeting = table_now.meetings.entry(key).or_insert(Meeting {
        size,
        members: Vec::new(),
    });
    if meeting.size != size {
        let other = meeting.size;
        drop(table_now);
        return call.finish(Err(internal!(
            "Collective Op has group_size {size} and group_key {}, but that group has size {other}",
            key.group
        )));
    }
    meeting.members.push(Member {
        rank,
        part,
        call,
        id,
        registration: None,
    });
    if meeting.members.len() >= size {
        let members = table_now.meetings.remove(&key).map(|m| m.members);
        drop(table_now);
        return finish(members.unwrap_or_default(), answer);
    }
    drop(table_now);
    let token = cancel.clone();
    let registration = cancel.on_cancel(move || {
        if let Some(member) = leave(key, id) {
            let reason = token.check().err();
            member.call.finish(Err(given_up(reason)));
        }
    });
    let mut table_now = table();
    let meeting = table_now.meetings.get_mut(&key);
    let member = meeting.and_then(|m| m.members.iter_mut().find(|m| m.id == id));
    let unused = match member {
        Some(member) => member.registration.replace(registration),
        None => Some(registration),
    };
    drop(table_now);
    drop(unused);
}

/// Removes a member that does not wait any more.
fn leave(key: CollectiveKey, id: u64) -> Option<Member> {
    let mut table = table();
    let meeting = table.meetings.get_mut(&key)?;
    let at = meeting.members.iter().position(|m| m.id == id)?;
    let member = meeting.members.swap_remove(at);
    if meeting.members.is_empty() {
        table.meetings.remove(&key);
    }
    Some(member)
}

fn given_up(reason: Option<Status>) -> Status {
    match reason {
        Some(e) if e.code() == Code::DeadlineExceeded => {
            deadline_exceeded!("Collective has timed out waiting for other workers.")
        }
        _ => cancelled!("the collective was dropped before all members arrived"),
    }
}

fn finish(mut members: Vec<Member>, answer: CollectiveFn) {
    members.sort_unstable_by(|a, b| a.rank.cmp(&b.rank));
    let parts: Vec<Option<Tensor>> = members.iter().map(|m| m.part.clone()).collect();
    let n = members.len();
    let results = answer(&parts).and_then(|results| match results.len() {
        found if found == n => Ok(results),
        found => Err(internal!("a collective of {n} members has {found} results")),
    });
    match results {
        Ok(results) => {
            for (member, result) in members.into_iter().zip(results) {
                drop(member.registration);
                member.call.finish(Ok(vec![result]));
            }
        }
        Err(error) => {
            for member in members {
                drop(member.registration);
                member.call.finish(Err(error.clone()));
            }
        }
    }
}
