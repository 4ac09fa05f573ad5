//! [`Writer`]: the sending side of a connection.

use super::frame::{Header, Kind};
use crate::master_session::lock;
use ferroflow_base::{Result, Status, internal};
use ferroflow_tensor::Tensor;
use prost::Message;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;

/// Shorter payloads are copied behind their frame's head.
const COPIED: usize = 1 << 12;
/// Most bytes that the thread which sends a frame writes itself.
const AT_ONCE: usize = 1 << 18;
/// Most pieces of one write.
const MAX_SLICES: usize = 16;

/// Frames are written by the thread that sends them, as far as the connection takes them at once; the rest is
/// left to the connection's task, [`Writer::flush`].
pub(super) struct Writer {
    to: OwnedWriteHalf,
    queue: Mutex<Queue>,
    /// Wakes the task.
    left: Notify,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that were written.
    written: usize,
    error: Option<io::ErrorKind>,
}

/// Bytes to write: those of tensors are never copied.
enum Piece {
    Bytes(Vec<u8>),
    Tensor(Tensor),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Bytes(bytes) => bytes,
            // Checked when it was queued.
            Piece::Tensor(tensor) => tensor.bytes().unwrap_or_default(),
        }
    }
}

impl Writer {
    pub(super) fn new(to: OwnedWriteHalf) -> Arc<Self> {
        Arc::new(Writer {
            to,
            queue: Mutex::default(),
            left: Notify::new(),
        })
    }

    /// Sends a frame whose payload is the content of a tensor, if any.
    ///
    /// # Errors
    /// UNAVAILABLE if the connection is lost; INVALID_ARGUMENT if the tensor is not plain.
    pub(super) fn send(
        &self,
        kind: Kind,
        call: u64,
        message: &dyn Head,
        payload: Option<&Tensor>,
    ) -> Result<()> {
        let content = payload.map(Tensor::bytes).transpose()?.unwrap_or_default();
        let mut bytes = Vec::with_capacity(64 + message.len() + content.len().min(COPIED));
        let header = Header {
            kind,
            call,
            head: message.len(),
            payload: content.len(),
        };
        if u32::try_from(header.head).is_err() {
            return Err(internal!("a message of {} bytes is too large", header.head));
        }
        bytes.extend_from_slice(&header.encode());
        message.write(&mut bytes);
        let mut queue = lock(&self.queue);
        if let Some(error) = queue.error {
            return Err(lost(error));
        }
        let is_idle = queue.pieces.is_empty();
        match payload {
            Some(tensor) if content.len() > COPIED => {
                queue.pieces.push_back(Piece::Bytes(bytes));
                queue.pieces.push_back(Piece::Tensor(tensor.clone()));
            }
            _ => {
                bytes.extend_from_slice(content);
                queue.pieces.push_back(Piece::Bytes(bytes));
            }
        }
        // Otherwise the task is at work.
        if is_idle {
            self.write(&mut queue, AT_ONCE);
            match queue.error {
                Some(error) => return Err(lost(error)),
                None if !queue.pieces.is_empty() => self.left.notify_one(),
                None => {}
            }
        }
        Ok(())
    }

    /// Writes what the connection takes at once, at most about `limit` bytes.
    fn write(&self, queue: &mut Queue, limit: usize) {
        let mut total = 0;
        while !queue.pieces.is_empty() && total < limit {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let mut skipped = queue.written;
            let mut n = 0;
            for (slice, piece) in slices.iter_mut().zip(&queue.pieces) {
                *slice = IoSlice::new(&piece.bytes()[skipped..]);
                skipped = 0;
                n += 1;
            }
            match self.to.try_write_vectored(&slices[..n]) {
                Ok(0) => return queue.fail(io::ErrorKind::WriteZero),
                Ok(written) => {
                    total += written;
                    queue.advance(written);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return queue.fail(e.kind()),
            }
        }
    }

    /// Writes what senders left, until the connection is lost.
    pub(super) async fn flush(&self) -> io::Error {
        loop {
            self.left.notified().await;
            loop {
                if let Err(e) = self.to.writable().await {
                    self.close(e.kind());
                    return e;
                }
                let mut queue = lock(&self.queue);
                self.write(&mut queue, AT_ONCE);
                if let Some(error) = queue.error {
                    return error.into();
                }
                if queue.pieces.is_empty() {
                    break;
                }
            }
        }
    }

    /// Refuses frames from now on.
    pub(super) fn close(&self, why: io::ErrorKind) {
        lock(&self.queue).fail(why);
    }
}

impl Queue {
    fn fail(&mut self, error: io::ErrorKind) {
        self.error.get_or_insert(error);
        self.pieces.clear();
        self.written = 0;
    }

    fn advance(&mut self, n: usize) {
        self.written += n;
        while let Some(first) = self.pieces.front() {
            let len = first.bytes().len();
            if self.written < len {
                return;
            }
            self.written -= len;
            self.pieces.pop_front();
        }
    }
}

fn lost(error: io::ErrorKind) -> Status {
    super::unavailable(&format!("Connection lost: {error}"))
}

/// The head of a frame: a message of any type, so that the code of connections exists once.
pub(super) trait Head {
    fn len(&self) -> usize;
    fn write(&self, to: &mut Vec<u8>);
}

impl<M: Message> Head for M {
    fn len(&self) -> usize {
        self.encoded_len()
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.encode_raw(to);
    }
}
