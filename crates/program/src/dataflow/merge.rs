//! The pending word of a Merge.

/// The state of a Merge in one iteration: a Merge runs with its first live input, or is dead when all
/// inputs are, and not before its control inputs have arrived.
///
/// Bit 0 is set until a live input arrives or the Merge is found dead; bits 1 to 15 count the control
/// inputs that are missing, bits 16 to 31 the dead inputs that have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergeState(u32);

const WAITING: u32 = 1;
const CONTROL: u32 = 1 << 1;
const DEAD_INPUT: u32 = 1 << 16;
/// All but the count of dead inputs.
const UNRESOLVED: u32 = DEAD_INPUT - 1;

/// The effect of an edge's arrival on a Merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MergeEvent {
    /// It still waits, or ran before.
    None,
    /// It runs.
    Ready,
    /// It is dead.
    Dead,
}

impl MergeState {
    /// Most inputs, and most control inputs, of a Merge, exclusive.
    pub const MAX_INPUTS: usize = 1 << 14;

    /// The state before anything has arrived.
    ///
    /// ```
    /// use ferroflow_program::{MergeEvent, MergeState};
    /// let mut state = MergeState::new(1);
    /// assert!(state.live_input_arrived() && !state.live_input_arrived());
    /// assert_eq!(state.control_arrived(2), MergeEvent::Ready);
    /// ```
    pub fn new(n_controls: usize) -> MergeState {
        MergeState(WAITING + CONTROL * n_controls as u32)
    }

    /// The state with these bits.
    #[inline]
    pub fn from_bits(bits: u32) -> MergeState {
        MergeState(bits)
    }

    /// The bits, as a pending count.
    #[inline]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether a live input or a control input is missing.
    #[inline]
    pub fn is_unresolved(self) -> bool {
        self.0 & UNRESOLVED != 0
    }

    /// Records a live input; returns whether it is the first.
    #[inline]
    pub fn live_input_arrived(&mut self) -> bool {
        let is_first = self.0 & WAITING != 0;
        self.0 &= !WAITING;
        is_first
    }

    /// Records a dead input; all of `n_inputs` if `all`.
    #[inline]
    pub fn dead_input_arrived(&mut self, n_inputs: u32, all: bool) -> MergeEvent {
        self.0 = self.0.wrapping_add(DEAD_INPUT);
        if all {
            self.0 |= n_inputs * DEAD_INPUT;
        }
        self.resolve_dead(n_inputs)
    }

    /// Records a control input.
    #[inline]
    pub fn control_arrived(&mut self, n_inputs: u32) -> MergeEvent {
        self.0 -= CONTROL;
        match self.is_unresolved() {
            false => MergeEvent::Ready,
            true => self.resolve_dead(n_inputs),
        }
    }

    fn resolve_dead(&mut self, n_inputs: u32) -> MergeEvent {
        if self.0 / DEAD_INPUT < n_inputs || self.0 & UNRESOLVED != WAITING {
            return MergeEvent::None;
        }
        self.0 &= !WAITING;
        MergeEvent::Dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of `l`ive, `d`ead and `c`ontrol inputs in this order.
    fn check(n_inputs: u32, arrivals: &str, expect: &[MergeEvent]) {
        let n_controls = arrivals.chars().filter(|c| *c == 'c').count();
        let mut state = MergeState::new(n_controls);
        let arrive = |a| match a {
            'l' => match state.live_input_arrived() && !state.is_unresolved() {
                true => MergeEvent::Ready,
                false => MergeEvent::None,
            },
            'd' => state.dead_input_arrived(n_inputs, false),
            'e' => state.dead_input_arrived(n_inputs, true),
            _ => state.control_arrived(n_inputs),
        };
        let got: Vec<MergeEvent> = arrivals.chars().map(arrive).collect();
        assert_eq!(got, expect, "{n_inputs} inputs, {arrivals}");
    }

    #[test]
    fn arrivals() {
        use MergeEvent::{Dead, None, Ready};
        check(2, "ld", &[Ready, None]);
        check(2, "dl", &[None, Ready]);
        check(2, "ll", &[Ready, None]);
        check(2, "dd", &[None, Dead]);
        check(2, "e", &[Dead]);
        check(2, "lcc", &[None, None, Ready]);
        check(2, "clc", &[None, None, Ready]);
        check(2, "cl", &[None, Ready]);
        check(2, "ddc", &[None, None, Dead]);
        check(2, "dcd", &[None, None, Dead]);
        check(1, "d", &[Dead]);
    }
}
