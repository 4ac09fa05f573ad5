//! The encoding of messages: protobuf in gRPC frames.
//!
//! Services and clients have dozens of message types. Their codec is one type all the same, so that the code
//! of a connection is compiled once: it encodes a boxed message and decodes to bytes.

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status};

/// A message of any type on its way out.
pub type AnyMessage = Box<dyn Encodable>;

/// A message that can be written to a frame.
pub trait Encodable: Send + Sync {
    /// Writes the message to `buf`, whose memory is allocated in the message's full size: a response of
    /// 100 MB is not copied while it is written.
    ///
    /// # Errors
    /// INTERNAL if the frame is full.
    fn write(&self, buf: &mut EncodeBuf<'_>) -> Result<(), Status>;
}

impl<T: Message> Encodable for T {
    fn write(&self, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.reserve(self.encoded_len());
        debug_assert!(buf.remaining_mut() > 0);
        let written = self.encode(buf);
        written.map_err(|e| Status::new(Code::Internal, e.to_string()))
    }
}

/// Parses the message of a frame.
///
/// # Errors
/// INTERNAL if the bytes are no message of this type.
pub fn parse<T: Message + Default>(frame: Bytes) -> Result<T, Status> {
    let bad = |e| Status::new(Code::Internal, format!("Unable to parse request: {e}"));
    T::decode(frame).map_err(bad)
}

/// The codec of all methods.
#[derive(Clone, Copy, Default)]
pub struct Frames;

impl Codec for Frames {
    type Encode = AnyMessage;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Frames
    }

    fn decoder(&mut self) -> Self {
        Frames
    }
}

impl Encoder for Frames {
    type Item = AnyMessage;
    type Error = Status;

    fn encode(&mut self, item: AnyMessage, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.write(buf)
    }
}

impl Decoder for Frames {
    type Item = Bytes;
    type Error = Status;

    /// The frame itself, not a copy of it.
    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buf.copy_to_bytes(buf.remaining())))
    }
}
