//! The encoding of messages: protobuf in gRPC frames.

use bytes::{Buf, BufMut};
use prost::{EncodeError, Message};
use std::any::Any;
use std::marker::PhantomData;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status};

/// A codec that encodes `T` and decodes `U`.
///
/// The buffer of a message is allocated in its full size, so that a response of 100 MB is not copied while
/// it is written.
pub struct Wire<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Wire<T, U> {
    fn default() -> Self {
        Wire(PhantomData)
    }
}

impl<T: Message + 'static, U: Message + Default + 'static> Codec for Wire<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<T: Message + 'static, U: 'static> Encoder for Wire<T, U> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        encode(&item, buf)
    }
}

impl<T: 'static, U: Message + Default + 'static> Decoder for Wire<T, U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        decode(buf).map(Some)
    }
}

fn encode(message: &dyn Outgoing, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
    buf.reserve(message.size());
    debug_assert!(buf.remaining_mut() > 0);
    let written = message.write(buf);
    written.map_err(|e| Status::new(Code::Internal, e.to_string()))
}

fn decode<U: Message + Default>(buf: &mut DecodeBuf<'_>) -> Result<U, Status> {
    debug_assert!(buf.remaining() <= isize::MAX as usize);
    let bad = |e| Status::new(Code::Internal, format!("Unable to parse request: {e}"));
    U::decode(buf).map_err(bad)
}

/// A message to send, of any type.
pub trait Outgoing: Send + Sync {
    /// The number of its bytes.
    fn size(&self) -> usize;

    /// Writes it.
    ///
    /// # Errors
    /// If the buffer is too small.
    fn write(&self, buf: &mut EncodeBuf<'_>) -> Result<(), EncodeError>;
}

impl<T: Message> Outgoing for T {
    fn size(&self) -> usize {
        self.encoded_len()
    }

    fn write(&self, buf: &mut EncodeBuf<'_>) -> Result<(), EncodeError> {
        self.encode(buf)
    }
}

/// A message that was received, of any type.
pub type Incoming = Box<dyn Any + Send + Sync>;

/// As [`Wire`] for messages of any types: what is compiled with it exists once, and not for each method.
#[derive(Clone, Copy)]
pub struct AnyWire(fn(&mut DecodeBuf<'_>) -> Result<Incoming, Status>);

impl AnyWire {
    /// Decodes messages as `U`.
    pub fn receiving<U: Message + Default + 'static>() -> Self {
        AnyWire(|buf| Ok(Box::new(decode::<U>(buf)?)))
    }
}

impl Codec for AnyWire {
    type Encode = Box<dyn Outgoing>;
    type Decode = Incoming;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for AnyWire {
    type Item = Box<dyn Outgoing>;
    type Error = Status;

    fn encode(&mut self, item: Self::Item, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        encode(&*item, buf)
    }
}

impl Decoder for AnyWire {
    type Item = Incoming;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Incoming>, Status> {
        (self.0)(buf).map(Some)
    }
}
