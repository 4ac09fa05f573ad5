//! Random operations on random streams, synchronized as a program must: no race, and every value right.
//!
//! `STREAM_OPS=10000000 cargo test -p ferroflow-device --release --test soak` is the long form.

use ferroflow_base::Code;
use ferroflow_device::{
    Allocator, AllocatorOptions, Buffer, Device, Event, Function, Grid, HostStreamOptions,
    HostStreams, KernelArg, Module, Order, Stream,
};
use ferroflow_testkit::random::Random;
use std::sync::{Arc, Mutex};

const N_STREAMS: usize = 4;
const N_BUFFERS: usize = 24;
/// Bytes of all buffers at most: less than a program would like, so that memory is used again.
const MEMORY: usize = 128 << 10;

const IMAGE: &str = ".version 6.0\n.visible .entry axpy_f32(.param .u32 n, .param .f32 a, \
                     .param .u64 x, .param .u64 y) { ret; }";

/// A buffer, what is in it when all operations have run, and the accesses that later ones wait for.
struct Slot {
    buffer: Buffer,
    values: Vec<f32>,
    write: Option<(usize, Event)>,
    reads: Vec<(usize, Event)>,
}

struct Soak {
    random: Random,
    streams: Vec<Stream>,
    allocator: Allocator,
    staging: Allocator,
    axpy: Function,
    slots: Vec<Option<Slot>>,
    wrong: Arc<Mutex<Vec<String>>>,
    /// One in `n` waits is left out.
    forgets: Option<usize>,
    n_oom: u64,
}

impl Soak {
    fn new(host: &Arc<HostStreams>, seed: u64, forgets: Option<usize>) -> Soak {
        let device = Device::new(host.clone(), 0).unwrap();
        let options = AllocatorOptions {
            memory_limit: Some(MEMORY),
            allow_growth: true,
            ..Default::default()
        };
        let module = Module::load(&device, IMAGE).unwrap();
        Soak {
            random: Random(seed),
            streams: (0..N_STREAMS)
                .map(|_| Stream::new(&device).unwrap())
                .collect(),
            allocator: Allocator::new(&device, &options),
            staging: Allocator::pinned(&device),
            axpy: module.function("axpy_f32").unwrap(),
            slots: (0..N_BUFFERS).map(|_| None).collect(),
            wrong: Arc::default(),
            forgets,
            n_oom: 0,
        }
    }

    /// Makes stream `s` wait for what it must before it accesses a slot.
    fn order(&mut self, s: usize, slot: usize, writes: bool) {
        let mut events = Vec::new();
        if let Some(slot) = &self.slots[slot] {
            events.extend(slot.write.iter());
            if writes {
                events.extend(&slot.reads);
            }
        }
        let others: Vec<Event> = events
            .into_iter()
            .filter(|(stream, _)| *stream != s)
            .map(|(_, event)| event.clone())
            .collect();
        for event in others {
            if self.forgets.is_none_or(|n| self.random.below(n) > 0) {
                self.streams[s].wait(&event).unwrap();
            }
        }
    }

    fn note(&mut self, s: usize, slot: usize, writes: bool) {
        let event = self.streams[s].mark().unwrap();
        let Some(slot) = &mut self.slots[slot] else {
            return;
        };
        if writes {
            slot.write = Some((s, event));
            slot.reads.clear();
        } else {
            slot.reads.retain(|(stream, _)| *stream != s);
            slot.reads.push((s, event));
        }
    }

    fn pick(&mut self) -> Option<usize> {
        let at = self.random.below(N_BUFFERS);
        self.slots[at].is_some().then_some(at)
    }

    fn allocate(&mut self, s: usize) {
        let at = self.random.below(N_BUFFERS);
        // The buffer before is freed here, behind the streams that use it.
        self.slots[at] = None;
        let len = [16, 64, 1000, 4096][self.random.below(4)];
        let buffer = match Buffer::new(&self.allocator, &self.streams[s], 4 * len, "soak") {
            Ok(buffer) => buffer,
            Err(e) if e.code() == Code::ResourceExhausted => {
                self.n_oom += 1;
                return;
            }
            Err(e) => panic!("{e}"),
        };
        let value = self.random.below(100) as f32;
        self.streams[s].fill(&buffer, &value.to_le_bytes()).unwrap();
        self.slots[at] = Some(Slot {
            buffer,
            values: vec![value; len],
            write: None,
            reads: Vec::new(),
        });
        self.note(s, at, true);
    }

    fn copy_or_add(&mut self, s: usize) {
        let (Some(x), Some(y)) = (self.pick(), self.pick()) else {
            return;
        };
        if x == y {
            return;
        }
        self.order(s, x, false);
        self.order(s, y, true);
        let mut target = self.slots[y].take().unwrap();
        let source = self.slots[x].as_ref().unwrap();
        if source.values.len() == target.values.len() {
            self.streams[s]
                .copy(&target.buffer, &source.buffer)
                .unwrap();
            target.values.clone_from(&source.values);
        } else {
            let n = source.values.len().min(target.values.len());
            let args = [
                KernelArg::I32(n as i32),
                KernelArg::F32(0.5),
                KernelArg::Buffer(&source.buffer),
                KernelArg::Buffer(&target.buffer),
            ];
            self.axpy
                .launch(&self.streams[s], &Grid::linear(n), &args)
                .unwrap();
            for (x, y) in source.values.iter().zip(&mut target.values) {
                *y = 0.5f32.mul_add(*x, *y);
            }
        }
        self.slots[y] = Some(target);
        self.note(s, x, false);
        self.note(s, y, true);
    }

    fn read(&mut self, s: usize) {
        let Some(at) = self.pick() else {
            return;
        };
        self.order(s, at, false);
        let slot = self.slots[at].as_ref().unwrap();
        let (expected, wrong) = (slot.values.clone(), self.wrong.clone());
        self.streams[s].copy_to_host(&slot.buffer, &self.staging, move |pinned| {
            let pinned = pinned.unwrap();
            let got = pinned.bytes().as_chunks::<4>().0.iter();
            let got: Vec<f32> = got.map(|b| f32::from_le_bytes(*b)).collect();
            let is_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            if !got.iter().zip(&expected).all(is_same) {
                let text = format!("{} instead of {}", got[0], expected[0]);
                wrong.lock().unwrap().push(text);
            }
        });
        self.note(s, at, false);
    }

    fn run(&mut self, n_ops: u64) {
        for _ in 0..n_ops {
            let s = self.random.below(N_STREAMS);
            match self.random.below(16) {
                0..4 => self.allocate(s),
                4..12 => self.copy_or_add(s),
                12..14 => self.read(s),
                14 => {
                    let other = self.random.below(N_STREAMS);
                    let event = self.streams[other].mark().unwrap();
                    self.streams[s].wait(&event).unwrap();
                }
                _ if self.random.below(8) == 0 => self.streams[s].synchronize().unwrap(),
                _ => {}
            }
        }
        for stream in &self.streams {
            stream.synchronize().unwrap();
        }
    }
}

fn options(order: Order) -> HostStreamOptions {
    HostStreamOptions {
        memory: 64 << 20,
        order,
        detect_races: true,
        ..Default::default()
    }
}

fn n_ops() -> u64 {
    std::env::var("STREAM_OPS").map_or(20_000, |n| n.parse().unwrap())
}

/// Runs synchronized operations: no race, no wrong value.
#[track_caller]
fn check(order: Order, n_ops: u64) {
    let host = HostStreams::new(options(order));
    let mut soak = Soak::new(&host, 7, None);
    soak.run(n_ops);
    assert_eq!(host.races(), (0, Vec::new()));
    assert_eq!(*soak.wrong.lock().unwrap(), Vec::<String>::new());
    let stats = soak.allocator.stats();
    assert!(
        stats.n_waits > 0 && soak.n_oom > 0,
        "memory was not scarce: {stats:?}"
    );
    assert!(
        stats.reserved <= MEMORY && stats.peak <= MEMORY,
        "{stats:?}"
    );
}

#[test]
fn shuffled_operations_do_not_race() {
    let shuffled = |seed| Order::Shuffled {
        seed,
        in_background: false,
    };
    for seed in 0..4 {
        check(shuffled(seed), n_ops() / 4);
    }
}

#[test]
#[ignore = "takes a minute when optimized; `cargo xtask soak` runs it"]
fn ten_million_operations_do_not_race() {
    for seed in 0..10 {
        let order = Order::Shuffled {
            seed,
            in_background: false,
        };
        check(order, 1_000_000);
    }
}

#[test]
fn operations_on_threads_do_not_race() {
    check(Order::Threads, n_ops() / 10);
    let order = Order::Shuffled {
        seed: 1,
        in_background: true,
    };
    check(order, n_ops() / 10);
}

#[test]
fn a_missing_wait_is_found() {
    let order = Order::Shuffled {
        seed: 5,
        in_background: false,
    };
    let host = HostStreams::new(options(order));
    let mut soak = Soak::new(&host, 7, Some(50));
    soak.run(20_000);
    let (n, races) = host.races();
    assert!(n > 0 && !races.is_empty());
    assert!(!soak.wrong.lock().unwrap().is_empty(), "no order showed it");
}

#[test]
fn shuffled_orders_are_reproducible() {
    let orders: Vec<Vec<usize>> = [3, 3, 4]
        .iter()
        .map(|seed| {
            let host = HostStreams::new(options(Order::Shuffled {
                seed: *seed,
                in_background: false,
            }));
            let device = Device::new(host, 0).unwrap();
            let streams: Vec<_> = (0..4).map(|_| Stream::new(&device).unwrap()).collect();
            let seen = Arc::new(Mutex::new(Vec::new()));
            for i in 0..40 {
                let seen = seen.clone();
                let call = move |_| seen.lock().unwrap().push(i);
                streams[i % 4].call_host(call).unwrap();
            }
            streams.iter().for_each(|s| s.synchronize().unwrap());
            let seen = seen.lock().unwrap();
            seen.clone()
        })
        .collect();
    assert_eq!(orders[0], orders[1]);
    assert_ne!(orders[0], orders[2]);
}
