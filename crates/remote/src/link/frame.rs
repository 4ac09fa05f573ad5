//! Frames: what travels on a link, and how tensors become their payloads.

use bytes::{Buf, Bytes, BytesMut};
use ferroflow_base::{Code, Result, Status, internal, invalid_argument};
use ferroflow_model::proto::{RunGraphRequest, TensorProto};
use ferroflow_tensor::{DType, Shape, Tensor};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt};

/// What a connection of a link begins with, where gRPC's begin with HTTP/2's preface.
pub(super) const MAGIC: &[u8; 16] = b"FERROFLOW-LINK/1";

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A [`Hello`], the first frame of each side.
    Hello = 1,
    /// A [`RunPart`], answered by a RunGraphResponse.
    Run = 2,
    /// A [`Push`], not answered; the payload is its tensor.
    Push = 3,
    /// A RecvBufRequest, answered by the buffer as payload.
    RecvBuf = 4,
    /// Ends the call of this number.
    Cancel = 5,
    /// Answered by [`Kind::Pong`].
    Ping = 6,
    Pong = 7,
    /// The answer to a call.
    Answer = 8,
    /// The error of a call, a [`Failure`].
    Failed = 9,
}

impl Kind {
    fn of(number: u8) -> Option<Kind> {
        use Kind::*;
        let all = [
            Hello, Run, Push, RecvBuf, Cancel, Ping, Pong, Answer, Failed,
        ];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// The task that opens a connection, or the one that accepts it.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Hello {
    /// The incarnation of the task's first device.
    #[prost(fixed64, tag = "1")]
    pub(super) incarnation: u64,
    /// The token of the cluster.
    #[prost(string, tag = "2")]
    pub(super) token: String,
    /// The task's name; empty for a client.
    #[prost(string, tag = "3")]
    pub(super) task: String,
}

/// A part of a step whose tasks push what they send to each other.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RunPart {
    #[prost(message, optional, tag = "1")]
    pub(super) request: Option<RunGraphRequest>,
    /// The incarnations of the tasks of the step.
    #[prost(fixed64, repeated, tag = "2")]
    pub(super) tasks: Vec<u64>,
}

/// A tensor for a step on another task.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Push {
    #[prost(uint64, tag = "1")]
    pub(super) step: u64,
    #[prost(string, tag = "2")]
    pub(super) key: String,
    /// Absent if the tensor is dead. One whose content is the payload has none.
    #[prost(message, optional, tag = "3")]
    pub(super) tensor: Option<TensorProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Failure {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    payloads: BTreeMap<String, Vec<u8>>,
}

impl Failure {
    pub(super) fn of(status: &Status) -> Failure {
        Failure {
            code: status.code() as i32,
            message: ferroflow_rpc::message(status),
            payloads: status.payloads().clone(),
        }
    }

    pub(super) fn status(self) -> Status {
        let code = Code::from_number(self.code).unwrap_or(Code::Unknown);
        Status::new(code, self.message).with_payloads(self.payloads)
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) call: u64,
    pub(super) head: usize,
    pub(super) payload: usize,
}

/// Bytes of a header.
pub(super) const HEADER: usize = 24;
/// Largest head of a frame, as large as a message of gRPC.
const MAX_HEAD: usize = i32::MAX as usize;
/// Larger payloads than the rest of the buffer are read past it.
const BUFFER: usize = 1 << 14;

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&(self.payload as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.call.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.head as u32).to_le_bytes());
        bytes[20] = self.kind as u8;
        bytes
    }

    fn decode(mut bytes: &[u8]) -> io::Result<Header> {
        let (payload, call) = (bytes.get_u64_le(), bytes.get_u64_le());
        let (head, kind) = (bytes.get_u32_le() as usize, bytes.get_u8());
        let payload = usize::try_from(payload).ok();
        match (Kind::of(kind), payload) {
            (Some(kind), Some(payload)) if head <= MAX_HEAD => Ok(Header {
                kind,
                call,
                head,
                payload,
            }),
            _ => Err(malformed("a frame's header")),
        }
    }
}

pub(super) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed: {what}"))
}

/// The reading side of a connection.
pub(super) struct Reader<R> {
    from: R,
    buffer: BytesMut,
    /// Counts reads that got something, by which a watchdog knows that the other side lives.
    pub(super) progress: std::sync::Arc<AtomicU64>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) fn new(from: R) -> Self {
        Reader {
            from,
            buffer: BytesMut::with_capacity(BUFFER),
            progress: Default::default(),
        }
    }

    /// Reads until the buffer has `n` bytes.
    async fn fill(&mut self, n: usize) -> io::Result<()> {
        while self.buffer.len() < n {
            // Heads grow as their bytes come, whatever length they claim.
            let wanted = (n - self.buffer.len()).clamp(BUFFER, 1 << 20);
            if self.buffer.capacity() < n {
                self.buffer.reserve(wanted);
            }
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.progress.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads the bytes that every connection begins with.
    pub(super) async fn magic(&mut self) -> io::Result<()> {
        self.fill(MAGIC.len()).await?;
        match self.buffer.split_to(MAGIC.len()) == MAGIC[..] {
            true => Ok(()),
            false => Err(malformed("the first bytes of a link")),
        }
    }

    /// Reads a frame without its payload, which has to be read or skipped next.
    pub(super) async fn frame(&mut self) -> io::Result<(Header, Bytes)> {
        self.fill(HEADER).await?;
        let header = Header::decode(&self.buffer.split_to(HEADER))?;
        self.fill(header.head).await?;
        Ok((header, self.buffer.split_to(header.head).freeze()))
    }

    /// Reads a payload into a tensor's own memory.
    pub(super) async fn payload(
        &mut self,
        dtype: DType,
        shape: Shape,
        n: usize,
    ) -> io::Result<Result<Tensor>> {
        let expected = shape.num_elements().checked_mul(dtype.size());
        if expected != Some(n) || !dtype.is_plain() {
            self.skip(n).await?;
            return Ok(Err(internal!(
                "a tensor of dtype {dtype} and shape {shape} came with {n} bytes"
            )));
        }
        let mut tensor = match Tensor::for_overwrite(raw(dtype), [n / width(dtype)].into()) {
            Ok(tensor) => tensor,
            Err(e) => {
                self.skip(n).await?;
                return Ok(Err(e));
            }
        };
        let mut at = 0;
        while at < n {
            let bytes = match bytes_mut(&mut tensor) {
                Ok(bytes) => &mut bytes[at..],
                Err(e) => {
                    self.skip(n - at).await?;
                    return Ok(Err(e));
                }
            };
            let got = match self.buffer.is_empty() {
                false => {
                    let got = self.buffer.len().min(bytes.len());
                    self.buffer.copy_to_slice(&mut bytes[..got]);
                    got
                }
                true => self.from.read(bytes).await?,
            };
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.progress.fetch_add(1, Ordering::Relaxed);
            at += got;
        }
        Ok(typed(tensor, dtype, shape))
    }

    /// Reads a payload that is not needed.
    pub(super) async fn skip(&mut self, n: usize) -> io::Result<()> {
        let mut left = n;
        while left > 0 {
            self.fill(1).await?;
            let got = self.buffer.len().min(left);
            self.buffer.advance(got);
            left -= got;
        }
        Ok(())
    }
}

/// A dtype of the same size, whose elements may have any bytes; bytes, if there is none.
fn raw(dtype: DType) -> DType {
    match dtype.size() {
        2 => DType::Int16,
        4 => DType::Int32,
        8 => DType::Int64,
        _ => DType::Uint8,
    }
}

/// The size of an element of [`raw`].
fn width(dtype: DType) -> usize {
    raw(dtype).size()
}

fn bytes_mut(tensor: &mut Tensor) -> Result<&mut [u8]> {
    match tensor.dtype() {
        DType::Int16 => tensor.slice_mut::<i16>().map(bytemuck::cast_slice_mut),
        DType::Int32 => tensor.slice_mut::<i32>().map(bytemuck::cast_slice_mut),
        DType::Int64 => tensor.slice_mut::<i64>().map(bytemuck::cast_slice_mut),
        _ => tensor.slice_mut::<u8>(),
    }
}

/// The tensor that was received as one of [`raw`].
fn typed(tensor: Tensor, dtype: DType, shape: Shape) -> Result<Tensor> {
    match dtype.size() == tensor.dtype().size() {
        true => {
            let typed = tensor.bitcast(dtype)?;
            drop(tensor);
            typed.with_shape(shape)
        }
        false => Tensor::from_bytes(dtype, shape, tensor.bytes()?),
    }
}

/// The dtype and the shape of a tensor whose content is a payload.
pub(super) fn type_of(proto: &TensorProto) -> Result<(DType, Shape)> {
    let dtype = DType::from_number(proto.dtype);
    let dtype =
        dtype.ok_or_else(|| invalid_argument!("no dtype has the number {}", proto.dtype))?;
    let dims = proto.tensor_shape.iter().flat_map(|shape| &shape.dim);
    let dims: Vec<i64> = dims.map(|dim| dim.size).collect();
    Ok((dtype, Shape::checked(&dims)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8]) -> io::Result<(Header, Bytes)> {
        Reader::new(bytes).frame().await
    }

    #[tokio::test]
    async fn frames_are_read_back() {
        let header = Header {
            kind: Kind::Push,
            call: 7,
            head: 3,
            payload: 1 << 40,
        };
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(b"abc");
        let (read_back, head) = read(&bytes).await.unwrap();
        assert_eq!((read_back, &head[..]), (header, &b"abc"[..]));
        for n in 0..bytes.len() {
            assert!(read(&bytes[..n]).await.is_err(), "{n} bytes");
        }
        bytes[20] = 0;
        assert!(read(&bytes).await.is_err(), "kind 0");
    }

    #[tokio::test]
    async fn payloads_become_tensors() {
        let long: Vec<f32> = (0..100_000).map(|i| i as f32).collect();
        let rows = [
            Tensor::from_slice([100_000], &long).unwrap(),
            Tensor::from_slice([2, 3], &[1i64, -2, 3, 4, 5, 6]).unwrap(),
            Tensor::from_slice([3], &[true, false, true]).unwrap(),
            Tensor::from_slice([2], &[1u16, 65_535]).unwrap(),
            Tensor::scalar(1.5f64),
        ];
        for tensor in rows {
            let bytes = tensor.bytes().unwrap();
            let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
            let mut reader = Reader::new(bytes);
            let read = reader.payload(dtype, shape, bytes.len()).await;
            let mut read = read.unwrap().unwrap();
            assert!(read.same_value(&tensor), "{dtype}");
            assert!(read.is_unique(), "{dtype}");
        }
    }

    #[tokio::test]
    async fn payloads_of_other_sizes_are_errors() {
        let bytes = [0u8; 12];
        for (dtype, n, left) in [
            (DType::Float, 12, 0),
            (DType::String, 12, 0),
            (DType::Float, 8, 4),
        ] {
            let mut reader = Reader::new(&bytes[..]);
            let read = reader.payload(dtype, [5].into(), n).await.unwrap();
            assert!(read.is_err(), "{dtype}");
            // What follows the payload is read next.
            assert!(reader.skip(left).await.is_ok() && reader.skip(1).await.is_err());
        }
    }
}
