//! The encoding of messages: protobuf in gRPC frames.

use bytes::{Buf, BufMut};
use prost::Message;
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
        buf.reserve(item.encoded_len());
        debug_assert!(buf.remaining_mut() > 0);
        let written = item.encode(buf);
        written.map_err(|e| Status::new(Code::Internal, e.to_string()))
    }
}

impl<T: 'static, U: Message + Default + 'static> Decoder for Wire<T, U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        debug_assert!(buf.remaining() <= isize::MAX as usize);
        let read = U::decode(buf);
        let bad = |e| Status::new(Code::Internal, format!("Unable to parse request: {e}"));
        read.map(Some).map_err(bad)
    }
}
