//! [`Warp`]: 32 threads that run in step.
//!
//! Each lane has a position. Those at the lowest one run until they branch apart or reach others, so that they meet again where
//! the code that compilers write has its branches meet.

use crate::Res;
use crate::alu::{LANES, Rows, compute};
use crate::kernel::Kernel;
use crate::matrix::{multiply, spread};
use crate::memory::Memory;
use crate::ops::{Instr, Op, Shuffle, Space, Ty};
use crate::shared::Shared;

/// Instructions of a warp, so that a loop without an end is an error.
const MAX_STEPS: u64 = if cfg!(test) { 1 << 20 } else { 1 << 30 };

/// What the threads of a block share.
pub(crate) struct Common<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) memory: Memory,
    pub(crate) shared: Shared,
    pub(crate) steps: u64,
    /// The instructions that ran.
    pub(crate) ran: Vec<bool>,
}

/// A copy that was started.
#[derive(Clone, Copy)]
struct Started {
    lane: u8,
    group: u32,
    to: u64,
    from: u64,
    len: usize,
    /// Bytes that are no zeros.
    read: usize,
}

/// What became of an instruction of several lanes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Joined {
    /// It ran; all its lanes were there.
    Alone,
    /// It ran with lanes that had waited.
    Met,
    /// Its lanes wait for others.
    Waits,
}

/// See the module text.
pub(crate) struct Warp {
    pub(crate) number: u8,
    pub(crate) rows: Rows,
    /// The position of each lane.
    at: [u32; LANES],
    /// Lanes that were started, and those that have not ended.
    started: u32,
    pub(crate) live: u32,
    /// Lanes that wait for a barrier, or for others of the warp.
    pub(crate) at_barrier: u32,
    waiting: u32,
    local: Vec<u8>,
    copies: Vec<Started>,
    /// Groups of copies that each lane has closed.
    groups: [u32; LANES],
}

fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

impl Warp {
    pub(crate) fn new(number: u8, kernel: &Kernel) -> Warp {
        Warp {
            number,
            rows: Rows(vec![[0; LANES]; kernel.n_rows]),
            at: [0; LANES],
            started: 0,
            live: 0,
            at_barrier: 0,
            waiting: 0,
            local: vec![0; kernel.local_size * LANES],
            copies: Vec::new(),
            groups: [0; LANES],
        }
    }

    /// Starts `lanes` lanes.
    pub(crate) fn start(&mut self, lanes: usize) {
        (self.at, self.groups) = ([0; LANES], [0; LANES]);
        self.started = (((1u64 << lanes) - 1) & 0xffff_ffff) as u32;
        self.live = self.started;
        (self.at_barrier, self.waiting) = (0, 0);
        self.copies.clear();
    }

    /// The position at which all lanes wait for a barrier.
    pub(crate) fn barrier(&self) -> Option<u32> {
        let mut at = lanes_of(self.live).map(|lane| self.at[lane]);
        let first = at.next().filter(|_| self.live == self.started)?;
        at.all(|at| at == first).then_some(first)
    }

    pub(crate) fn pass_barrier(&mut self) {
        for lane in lanes_of(self.at_barrier) {
            self.at[lane] += 1;
        }
        self.at_barrier = 0;
    }

    /// Runs until all lanes have ended or wait for a barrier.
    pub(crate) fn run(&mut self, common: &mut Common) -> Result<(), (usize, String)> {
        loop {
            let ready = self.live & !self.at_barrier & !self.waiting;
            let Some(lowest) = lanes_of(ready).map(|lane| self.at[lane]).min() else {
                break;
            };
            let mask = lanes_of(ready).filter(|lane| self.at[*lane] == lowest);
            let mask = mask.fold(0, |mask, lane| mask | 1 << lane);
            let others = lanes_of(ready & !mask).map(|lane| self.at[lane]);
            let next = others.min().unwrap_or(u32::MAX);
            self.run_together(common, lowest, mask, next)?;
        }
        match lanes_of(self.waiting).next() {
            Some(lane) => {
                let what = "not all lanes of the warp reach it".to_string();
                Err((lane, self.fault(common, self.at[lane], what)))
            }
            None => Ok(()),
        }
    }

    fn fault(&self, common: &Common, at: u32, what: String) -> String {
        format!("{what}: {}", common.kernel.statements[at as usize])
    }

    /// Runs lanes from one position on until they part or reach position `next`.
    fn run_together(
        &mut self,
        common: &mut Common,
        mut at: u32,
        mut mask: u32,
        next: u32,
    ) -> Result<(), (usize, String)> {
        let kernel = common.kernel;
        while at < next {
            common.steps += 1;
            let instr = &kernel.code[at as usize];
            let runs = match instr.guard {
                Some((row, expected)) => {
                    let set = self.rows.lanes(row);
                    mask & if expected { set } else { !set }
                }
                None => mask,
            };
            common.ran[at as usize] |= runs != 0;
            match instr.op {
                Op::Branch(target) if runs == mask => {
                    at = target;
                    if common.steps > MAX_STEPS {
                        let lane = mask.trailing_zeros() as usize;
                        return Err((lane, self.fault(common, at, "it runs for too long".into())));
                    }
                    continue;
                }
                Op::Branch(_) if runs == 0 => {}
                Op::Branch(target) => {
                    lanes_of(runs).for_each(|lane| self.at[lane] = target);
                    lanes_of(mask & !runs).for_each(|lane| self.at[lane] = at + 1);
                    return Ok(());
                }
                Op::Exit => {
                    self.live &= !runs;
                    mask &= !runs;
                }
                Op::Barrier => {
                    self.at_barrier |= runs;
                    lanes_of(runs).for_each(|lane| self.at[lane] = at);
                    mask &= !runs;
                }
                _ if instr.is_joint() && runs != 0 => match self.join(common, instr, at, runs) {
                    Ok(Joined::Alone) => {}
                    Ok(joined) => {
                        let own = if joined == Joined::Waits { at } else { at + 1 };
                        lanes_of(mask).for_each(|lane| self.at[lane] = at + 1);
                        lanes_of(runs).for_each(|lane| self.at[lane] = own);
                        return Ok(());
                    }
                    Err(what) => {
                        return Err((runs.trailing_zeros() as usize, self.fault(common, at, what)));
                    }
                },
                _ if runs != 0 => {
                    if let Err((lane, what)) = self.execute(common, instr, runs) {
                        return Err((lane, self.fault(common, at, what)));
                    }
                }
                _ => {}
            }
            at += 1;
            if mask == 0 {
                return Ok(());
            }
        }
        lanes_of(mask).for_each(|lane| self.at[lane] = at);
        Ok(())
    }

    /// Runs an instruction of several lanes, if all that it needs have come.
    fn join(&mut self, common: &mut Common, instr: &Instr, at: u32, runs: u32) -> Res<Joined> {
        let here = lanes_of(self.waiting).filter(|lane| self.at[*lane] == at);
        let present = here.fold(runs, |mask, lane| mask | 1 << lane);
        let needed = match instr.op {
            Op::Shuffle(_) => {
                let members = self.rows.get(instr.s[3]);
                lanes_of(runs).fold(0, |mask, lane| mask | members[lane] as u32)
            }
            _ => u32::MAX,
        };
        if needed & !self.live != 0 {
            return Err("a lane that it needs has ended".to_string());
        }
        if runs & !needed != 0 {
            return Err("a lane is not among the members".to_string());
        }
        if needed & !present != 0 {
            self.waiting |= runs;
            return Ok(Joined::Waits);
        }
        match instr.op {
            Op::Shuffle(kind) => self.shuffle(kind, instr, present),
            Op::Matrix(kind) => multiply(&mut self.rows, kind, &instr.d, &instr.s),
            Op::LoadMatrix { is_turned, offset } => {
                self.load_matrices(common, instr, is_turned, offset)?;
            }
            _ => {}
        }
        for lane in lanes_of(present & !runs) {
            self.at[lane] += 1;
        }
        self.waiting &= !present;
        Ok(if present == runs {
            Joined::Alone
        } else {
            Joined::Met
        })
    }

    fn shuffle(&mut self, kind: Shuffle, instr: &Instr, mask: u32) {
        let [value, by, limit, _] = [0, 1, 2, 3].map(|i| *self.rows.get(instr.s[i]));
        for lane in lanes_of(mask) {
            let (by, limit) = ((by[lane] & 31) as usize, limit[lane] as usize);
            let segment = limit >> 8 & 31;
            let least = lane & segment;
            let most = least | (limit & 31 & !segment);
            let (from, is_valid) = match kind {
                Shuffle::Xor => (lane ^ by, lane ^ by <= most),
                Shuffle::Down => (lane + by, lane + by <= most),
                Shuffle::Up => (lane.wrapping_sub(by), lane >= by && lane - by >= most),
                Shuffle::Index => (least | (by & !segment), least | (by & !segment) <= most),
            };
            let from = if is_valid { from } else { lane };
            self.rows.set(instr.d[0], lane, value[from] & 0xffff_ffff);
            if let Some(p) = instr.d.get(1) {
                self.rows.set(*p, lane, u64::from(is_valid));
            }
        }
    }

    fn load_matrices(
        &mut self,
        common: &mut Common,
        instr: &Instr,
        is_turned: bool,
        offset: i64,
    ) -> Res<()> {
        let addresses = *self.rows.get(instr.s[0]);
        let mut matrices = vec![[[0; 8]; 8]; instr.d.len()];
        for (i, row) in matrices.iter_mut().flatten().enumerate() {
            let at = (addresses[i] as u32 as u64).wrapping_add_signed(offset);
            let bytes = common.shared.read(at, 16, 16, self.number)?;
            *row = std::array::from_fn(|i| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]));
        }
        spread(&mut self.rows, &instr.d, &matrices, is_turned);
        Ok(())
    }

    fn execute(
        &mut self,
        common: &mut Common,
        instr: &Instr,
        mask: u32,
    ) -> Result<(), (usize, String)> {
        let first = mask.trailing_zeros() as usize;
        match instr.op {
            Op::Load(space, ty, offset) => self.each(mask, |warp, lane| {
                warp.load(common, instr, (space, ty, offset), lane)
            }),
            Op::Store(space, ty, offset) => self.each(mask, |warp, lane| {
                warp.store(common, instr, (space, ty, offset), lane)
            }),
            Op::Reduce(offset) => self.each(mask, |warp, lane| {
                let at = warp.rows.get(instr.s[0])[lane].wrapping_add_signed(offset);
                let value = f32::from_bits(warp.rows.get(instr.s[1])[lane] as u32);
                let [a, b, c, d, ..] = common.memory.read(at, 4, 4)?;
                let sum = f32::from_le_bytes([a, b, c, d]) + value;
                common.memory.write(at, &sum.to_le_bytes(), 4)
            }),
            Op::CopyAsync { bytes, to, from } => self.each(mask, |warp, lane| {
                warp.start_copy(common, instr, (bytes, to, from), lane)
            }),
            Op::CopyCommit => {
                lanes_of(mask).for_each(|lane| self.groups[lane] += 1);
                Ok(())
            }
            Op::CopyWait(left) => {
                let waited = self.wait(common, mask, left);
                waited.map_err(|what| (first, what))
            }
            op => compute(&mut self.rows, mask, op, &instr.d, &instr.s).map_err(|e| (first, e)),
        }
    }

    fn each(
        &mut self,
        mask: u32,
        mut f: impl FnMut(&mut Warp, usize) -> Res<()>,
    ) -> Result<(), (usize, String)> {
        lanes_of(mask).try_for_each(|lane| f(self, lane).map_err(|what| (lane, what)))
    }

    fn local_range(&self, lane: usize, at: u64, len: usize) -> Res<std::ops::Range<usize>> {
        let size = self.local.len() / LANES;
        let is_in = at
            .checked_add(len as u64)
            .is_some_and(|end| end <= size as u64);
        match is_in {
            true => Ok(lane * size + at as usize..lane * size + at as usize + len),
            false => Err(format!(
                "{len} bytes at {at:#x} are outside of local memory"
            )),
        }
    }

    fn address(&self, row: u32, lane: usize, space: Space, offset: i64) -> u64 {
        let base = self.rows.get(row)[lane];
        match space {
            Space::Shared => u64::from(base as u32).wrapping_add_signed(offset),
            _ => base.wrapping_add_signed(offset),
        }
    }

    fn load(
        &mut self,
        common: &mut Common,
        instr: &Instr,
        (space, ty, offset): (Space, Ty, i64),
        lane: usize,
    ) -> Res<()> {
        let at = self.address(instr.s[0], lane, space, offset);
        let (size, len) = (ty.size(), ty.size() * instr.d.len());
        let bytes = match space {
            Space::Global => common.memory.read(at, len, len)?,
            Space::Shared => common.shared.read(at, len, len, self.number)?,
            Space::Local => {
                let mut bytes = [0; 16];
                bytes[..len].copy_from_slice(&self.local[self.local_range(lane, at, len)?]);
                bytes
            }
        };
        for (i, d) in instr.d.iter().enumerate() {
            let mut word = [0; 8];
            word[..size].copy_from_slice(&bytes[i * size..(i + 1) * size]);
            let value = u64::from_le_bytes(word);
            let shift = 64 - 8 * size as u32;
            let value = match ty.is_signed() {
                true => ((value << shift) as i64 >> shift) as u64,
                false => value,
            };
            self.rows.set(*d, lane, value);
        }
        Ok(())
    }

    fn store(
        &mut self,
        common: &mut Common,
        instr: &Instr,
        (space, ty, offset): (Space, Ty, i64),
        lane: usize,
    ) -> Res<()> {
        let at = self.address(instr.s[0], lane, space, offset);
        let (size, len) = (ty.size(), ty.size() * (instr.s.len() - 1));
        let mut bytes = [0; 16];
        for (i, row) in instr.s[1..].iter().enumerate() {
            let word = self.rows.get(*row)[lane].to_le_bytes();
            bytes[i * size..(i + 1) * size].copy_from_slice(&word[..size]);
        }
        match space {
            Space::Global => common.memory.write(at, &bytes[..len], len),
            Space::Shared => common.shared.write(at, &bytes[..len], len, self.number),
            Space::Local => {
                let range = self.local_range(lane, at, len)?;
                self.local[range].copy_from_slice(&bytes[..len]);
                Ok(())
            }
        }
    }

    fn start_copy(
        &mut self,
        common: &mut Common,
        instr: &Instr,
        (len, to, from): (usize, i64, i64),
        lane: usize,
    ) -> Res<()> {
        let to = self.address(instr.s[0], lane, Space::Shared, to);
        let from = self.address(instr.s[1], lane, Space::Global, from);
        let read = instr
            .s
            .get(2)
            .map_or(len, |row| self.rows.get(*row)[lane] as u32 as usize);
        if read > len {
            return Err(format!("a copy of {read} bytes of {len}"));
        }
        common.shared.start_copy(to, len, self.number)?;
        self.copies.push(Started {
            lane: lane as u8,
            group: self.groups[lane],
            to,
            from,
            len,
            read,
        });
        Ok(())
    }

    /// Ends the copies of lanes, but those of the last groups.
    fn wait(&mut self, common: &mut Common, mask: u32, left: Option<u32>) -> Res<()> {
        let copies = std::mem::take(&mut self.copies);
        for copy in copies {
            let lane = usize::from(copy.lane);
            let last = left.map_or(u32::MAX, |left| self.groups[lane].saturating_sub(left));
            if mask >> lane & 1 == 0 || copy.group >= last {
                self.copies.push(copy);
                continue;
            }
            let mut bytes = [0; 16];
            if copy.read > 0 {
                bytes = common.memory.read(copy.from, copy.read, copy.len)?;
            }
            common
                .shared
                .end_copy(copy.to, &bytes[..copy.len], self.number)?;
        }
        Ok(())
    }

    /// Whether all copies were waited for.
    pub(crate) fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }
}
