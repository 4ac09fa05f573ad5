//! The order in which a thread on its own runs the kernels of a function.

use super::body::{Body, Kernel};
use std::collections::VecDeque;

/// An order that no value decides, as long as none is late: constants come first, which nobody can
/// see; of the kernels that another makes ready, the first comes next, and the others queue up.
#[derive(Debug, Default)]
pub struct Serial {
    order: Vec<u32>,
    n_alone: usize,
}

/// Kernels that are ready.
struct Queue {
    next: Option<u32>,
    others: VecDeque<u32>,
    /// How many of the others are no constants.
    n_visible: usize,
    is_constant: Vec<bool>,
}

impl Queue {
    fn is_constant(&self, id: u32) -> bool {
        self.is_constant.get(id as usize).copied().unwrap_or(false)
    }

    fn push(&mut self, id: u32) {
        self.n_visible += usize::from(!self.is_constant(id));
        self.others.push_back(id);
    }

    fn pop(&mut self) -> Option<u32> {
        if let Some(id) = self.next.take() {
            return Some(id);
        }
        let id = self.others.pop_front()?;
        self.n_visible -= usize::from(!self.is_constant(id));
        Some(id)
    }
}

impl Serial {
    /// The order of a body whose lists were checked.
    pub(super) fn new(body: &Body, is_constant: impl Fn(&Kernel) -> bool) -> Serial {
        let mut waits = body.waits().to_vec();
        let mut is_ready = |id: u32| {
            let wait = waits.get_mut(id as usize);
            wait.is_some_and(|n| {
                *n = n.wrapping_sub(1);
                *n == 0
            })
        };
        let kernels = body.kernels().iter().map(is_constant);
        let mut queue = Queue {
            next: None,
            others: VecDeque::new(),
            n_visible: 0,
            is_constant: std::iter::once(false).chain(kernels).collect(),
        };
        let mut serial = Serial::default();
        for id in body.sources() {
            queue.push(*id);
            if queue.is_constant(*id) {
                serial.order.push(*id);
            }
        }
        serial.n_alone = serial.order.len();
        let arguments = (0..body.n_arguments()).flat_map(|i| body.argument_used_by(i));
        for user in arguments.filter(|id| is_ready(**id)) {
            queue.push(*user);
        }
        let mut is_alone = true;
        while let Some(id) = queue.pop() {
            let Some(kernel) = body.kernels().get(id as usize - 1) else {
                continue;
            };
            if !queue.is_constant(id) {
                is_alone &= queue.n_visible == 0;
                serial.n_alone += usize::from(is_alone);
                serial.order.push(id);
            }
            for i in 0..body.results(kernel).len() {
                for user in body.used_by(kernel, i) {
                    match is_ready(*user) {
                        true if queue.next.is_none() => queue.next = Some(*user),
                        true => queue.push(*user),
                        false => {}
                    }
                }
            }
        }
        serial
    }

    /// All kernels, each once, by number from 1.
    #[inline]
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// How many of the first ones run while no other is ready.
    #[inline]
    pub fn n_alone(&self) -> usize {
        self.n_alone
    }
}
