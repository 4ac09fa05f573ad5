//! [`Launch`]: a kernel with its grid and its arguments.

use crate::Res;
use crate::alu::LANES;
use crate::driver::Param;
use crate::kernel::{Kernel, Special};
use crate::memory::Memory;
use crate::shared::Shared;
use crate::warp::{Common, Warp};
use std::sync::Arc;

/// Threads of a block.
const MAX_THREADS: u32 = 1024;

/// See the module text.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) args: Vec<Param>,
}

impl Launch {
    fn check(&self) -> Res<()> {
        let n: u32 = self.threads.iter().product();
        let most = self.kernel.max_threads.unwrap_or(MAX_THREADS);
        if n == 0 || n > most || self.threads[2] > 64 {
            return Err(format!("blocks of {n} threads, of {most}"));
        }
        if self.blocks.contains(&0) || self.blocks[1..].iter().any(|n| *n > 65535) {
            return Err(format!("a grid of {:?} blocks", self.blocks));
        }
        match self.kernel.layout.fits() {
            true => Ok(()),
            false => Err("too much shared memory".to_string()),
        }
    }

    /// Runs all blocks, one after the other; returns which instructions ran.
    ///
    /// # Safety
    /// The memory among the arguments is live, and nothing else uses it meanwhile.
    ///
    /// # Errors
    /// What the first thread that does something wrong does.
    pub(crate) unsafe fn run(&self) -> Res<Vec<bool>> {
        let kernel = &*self.kernel;
        self.check().map_err(|e| format!("{}: {e}", kernel.name))?;
        let own = self.args.iter().filter(|arg| arg.len > 0);
        let own = own.map(|arg| (arg.start, arg.len));
        let spans = own.chain(kernel.globals.iter().copied()).collect();
        // SAFETY: the caller promises the arguments; global variables are never freed, and kernels only read them.
        let memory = unsafe { Memory::new(spans) };
        let mut common = Common {
            kernel,
            memory,
            shared: Shared::new(&kernel.layout),
            steps: 0,
            ran: vec![false; kernel.code.len()],
        };
        let n_threads = self.threads.iter().product::<u32>() as usize;
        let n_warps = n_threads.div_ceil(LANES);
        let mut warps: Vec<Warp> = (0..n_warps).map(|i| Warp::new(i as u8, kernel)).collect();
        for warp in &mut warps {
            self.fill(warp);
        }
        let [x, y, z] = self.blocks;
        for number in 0..u64::from(x) * u64::from(y) * u64::from(z) {
            let block = [
                (number % u64::from(x)) as u32,
                (number / u64::from(x) % u64::from(y)) as u32,
                (number / u64::from(x) / u64::from(y)) as u32,
            ];
            for (i, warp) in warps.iter_mut().enumerate() {
                for (special, row) in &kernel.specials {
                    if let Special::Block(dim) = special {
                        warp.rows.0[*row as usize] = [block[*dim].into(); LANES];
                    }
                }
                warp.start((n_threads - i * LANES).min(LANES));
            }
            let ran = run_block(&mut warps, &mut common);
            ran.map_err(|(thread, what)| {
                let thread = self.thread(thread);
                format!(
                    "{}: block {block:?}, thread {thread:?}: {what}",
                    kernel.name
                )
            })?;
        }
        Ok(common.ran)
    }

    fn thread(&self, number: usize) -> [u32; 3] {
        let (number, [x, y, _]) = (number as u32, self.threads);
        [number % x, number / x % y, number / x / y]
    }

    /// Sets the rows that are the same in all blocks.
    fn fill(&self, warp: &mut Warp) {
        let kernel = &*self.kernel;
        for (row, value) in &kernel.numbers {
            warp.rows.0[*row as usize] = [*value; LANES];
        }
        for ((row, _), arg) in kernel.params.iter().zip(&self.args) {
            warp.rows.0[*row as usize] = [arg.value; LANES];
        }
        let first = usize::from(warp.number) * LANES;
        for (special, row) in &kernel.specials {
            let value = |lane: usize| match special {
                Special::Thread(dim) => self.thread(first + lane)[*dim],
                Special::Threads(dim) => self.threads[*dim],
                Special::Blocks(dim) => self.blocks[*dim],
                Special::Lane => lane as u32,
                Special::Block(_) => 0,
            };
            warp.rows.0[*row as usize] = std::array::from_fn(|lane| value(lane).into());
        }
    }
}

/// Runs the warps of a block; an error has the number of the thread.
fn run_block(warps: &mut [Warp], common: &mut Common) -> Result<(), (usize, String)> {
    common.shared.start();
    let mut is_reversed = false;
    loop {
        // Every second time from the last warp on, as their order is not known.
        for i in 0..warps.len() {
            let i = if is_reversed { warps.len() - 1 - i } else { i };
            let ran = warps[i].run(common);
            ran.map_err(|(lane, what)| (i * LANES + lane, what))?;
        }
        is_reversed = !is_reversed;
        let Some(first) = warps.iter().position(|w| w.live != 0) else {
            break;
        };
        let at = warps[first].barrier();
        let is_same = |w: &Warp| w.live != 0 && w.barrier() == at;
        if at.is_none() || !warps.iter().all(is_same) {
            return Err((
                first * LANES,
                "not all threads reach the same barrier".to_string(),
            ));
        }
        warps.iter_mut().for_each(Warp::pass_barrier);
        common.shared.pass_barrier();
    }
    match warps.iter().position(Warp::has_copies) {
        Some(i) => Err((i * LANES, "ends before its copies".to_string())),
        None => Ok(()),
    }
}
