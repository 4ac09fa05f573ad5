//! The static schedule of a function: the order in which one thread runs its kernels.

use super::body::{Body, Kernel};
use std::collections::VecDeque;

/// A topological order of a function's kernels, fixed before any value is known.
///
/// Constants come first, which no effect reveals. Of the kernels that another one makes ready, the
/// first runs next and the others queue up, as in TFRT's executor. A non-strict kernel whose turn
/// comes while arguments are missing is deferred until the last of them has been computed, and runs before
/// other readers of that one, as if it had been started and waited: early starts pay off only if the value
/// arrives later than its kernel returns.
#[derive(Debug, Default)]
pub struct StaticSchedule {
    order: Vec<u32>,
}

/// Kernels that are ready.
#[derive(Default)]
struct ReadyQueue {
    next: Option<u32>,
    others: VecDeque<u32>,
}

impl ReadyQueue {
    fn push(&mut self, id: u32) {
        match self.next {
            None => self.next = Some(id),
            Some(_) => self.others.push_back(id),
        }
    }

    fn push_front(&mut self, id: u32) {
        if let Some(next) = self.next.replace(id) {
            self.others.push_front(next);
        }
    }

    fn pop(&mut self) -> Option<u32> {
        self.next.take().or_else(|| self.others.pop_front())
    }
}

/// The arguments that a kernel still waits for.
#[derive(Clone, Copy)]
struct Waiting {
    /// Arguments that have not been computed.
    missing: u32,
    /// Arguments until the kernel becomes ready: all, or one if it is not strict.
    until_ready: u32,
    is_deferred: bool,
}

impl Waiting {
    fn on(body: &Body) -> Vec<Waiting> {
        let kernels = body.kernels().iter().map(|k| k.n_args() as u32);
        let missing = std::iter::once(0).chain(kernels);
        let waiting = |(missing, until_ready): (u32, &u32)| Waiting {
            missing,
            until_ready: *until_ready,
            is_deferred: false,
        };
        missing.zip(body.waits()).map(waiting).collect()
    }

    /// Counts an argument; whether the kernel is ready now.
    fn arrive(&mut self) -> bool {
        self.missing = self.missing.saturating_sub(1);
        self.until_ready = self.until_ready.wrapping_sub(1);
        self.until_ready == 0 || (self.is_deferred && self.missing == 0)
    }
}

impl StaticSchedule {
    /// The schedule of a body whose lists have been checked.
    pub(super) fn new(body: &Body, is_constant: impl Fn(&Kernel) -> bool) -> StaticSchedule {
        let mut waiting = Waiting::on(body);
        let constant = |id: u32| body.kernel(id).is_some_and(&is_constant);
        let mut queue = ReadyQueue::default();
        let sources = body.sources().iter().copied();
        let mut order: Vec<u32> = sources.clone().filter(|id| constant(*id)).collect();
        queue.others.extend(sources);
        let mut arrive = |user: u32| waiting.get_mut(user as usize).is_some_and(Waiting::arrive);
        let arguments = (0..body.n_arguments()).flat_map(|i| body.argument_used_by(i));
        queue
            .others
            .extend(arguments.copied().filter(|id| arrive(*id)));
        while let Some(id) = queue.pop() {
            let Some(kernel) = body.kernel(id) else {
                continue;
            };
            if let Some(waiting) = waiting.get_mut(id as usize)
                && waiting.missing > 0
            {
                waiting.is_deferred = true;
                continue;
            }
            if !constant(id) {
                order.push(id);
            }
            for user in (0..body.results(kernel).len()).flat_map(|i| body.used_by(kernel, i)) {
                let Some(waiting) = waiting.get_mut(*user as usize) else {
                    continue;
                };
                match waiting.arrive() {
                    true if waiting.is_deferred => queue.push_front(*user),
                    true => queue.push(*user),
                    false => {}
                }
            }
        }
        StaticSchedule { order }
    }

    /// All kernels, each once, by number from 1.
    #[inline]
    pub fn order(&self) -> &[u32] {
        &self.order
    }
}

#[cfg(test)]
mod tests {
    use crate::{bef, mlir};
    use std::sync::Arc;

    /// The names of the first function's kernels in the order of its schedule.
    fn check(body: &str, expect: &str) {
        let text = format!(
            "func @f(%x: i32) {{\n{body}  tfrt.return\n}}\nfunc @g(%x: i32, %y: i32) {{\n  tfrt.return\n}}"
        );
        let module = mlir::parse(&text, "t.mlir", 0).expect("well formed");
        let bytes = bef::write(&module, true).expect("can be written");
        let file = bef::File::open(Arc::new(bytes)).expect("valid");
        let body = file.body(0).expect("valid");
        let order = body.schedule().order().iter();
        let names = order.filter_map(|id| Some(file.kernel_name(body.kernel(*id)?.code)));
        assert_eq!(names.collect::<Vec<_>>().join(" "), expect, "{text}");
    }

    #[test]
    fn schedules_follow_values() {
        // Constants come first; the latest reader of a value comes before the others.
        check(
            "  %a = \"t.a\"(%x) : (i32) -> i32\n  %b = \"t.b\"(%x) : (i32) -> i32\n  \
             %c = \"t.c\"(%b) : (i32) -> i32\n  %k = tfrt.constant.i32 1\n",
            "tfrt.constant.i32 t.b t.c t.a",
        );
        // A kernel that is not strict waits until its arguments have been computed.
        check(
            "  %a = \"t.a\"(%x) : (i32) -> i32\n  \
             \"t.call\"(%a, %x) {bef.nonstrict, callee = @g} : (i32, i32) -> ()\n  \
             \"t.d\"(%x) : (i32) -> ()\n",
            "t.d t.a t.call",
        );
        // Then it comes before the other readers of the last one.
        check(
            "  %a = \"t.a\"(%x) : (i32) -> i32\n  %b = \"t.b\"(%x) : (i32) -> i32\n  \
             \"t.call\"(%a, %b) {bef.nonstrict, callee = @g} : (i32, i32) -> ()\n  \
             \"t.d\"(%a, %b) : (i32, i32) -> ()\n",
            "t.b t.a t.call t.d",
        );
    }
}
