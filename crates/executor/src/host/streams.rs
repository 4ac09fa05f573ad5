//! Streams: kernels that the compiler wants on one thread.

use super::registers::Ready;

/// Kernels that are ready: those of the stream that runs here, and others.
pub(super) struct StreamQueue<'a> {
    streams: &'a [u32],
    stream: u32,
    pub(super) here: Vec<u32>,
    others: Vec<u32>,
}

impl<'a> StreamQueue<'a> {
    pub(super) fn new(streams: &'a [u32], stream: Option<u32>) -> Self {
        StreamQueue {
            streams,
            stream: stream.unwrap_or(0),
            here: Vec::new(),
            others: Vec::new(),
        }
    }

    fn stream_of(&self, kernel: u32) -> u32 {
        self.streams.get(kernel as usize).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, kernels: &[u32]) {
        for kernel in kernels {
            match self.stream_of(*kernel) == self.stream {
                true => self.here.push(*kernel),
                false => self.others.push(*kernel),
            }
        }
    }

    /// Continues with another stream when nothing is left of the current one.
    pub(super) fn continue_elsewhere(&mut self) {
        if let (true, Some(first)) = (self.here.is_empty(), self.others.first()) {
            self.stream = self.stream_of(*first);
            let others = std::mem::take(&mut self.others);
            self.add(&others);
        }
    }

    /// The kernels of other streams, stream by stream.
    pub(super) fn take_others(&mut self) -> Vec<(u32, Ready)> {
        let mut others = std::mem::take(&mut self.others);
        others.sort_by_key(|kernel| self.stream_of(*kernel));
        let groups = others.chunk_by(|a, b| self.stream_of(*a) == self.stream_of(*b));
        let group = |kernels: &[u32]| {
            let stream = kernels.first().map_or(0, |k| self.stream_of(*k));
            (stream, Ready::from_slice(kernels))
        };
        groups.map(group).collect()
    }
}
