//! The encoding of values of a compiled model: fields one after the other, integers with seven bits a
//! byte, enums behind a tag. The tables at the end of this file are both the encoder and the decoder.

use super::format::{Reader, Writer};
use super::model::{Interface, Port};
use super::tensors::{TensorData, TensorEntry, TensorTable};
use crate::dataflow::{
    Body, BodyAction, BodyFrame, BodyNode, FrameIdx, FrameKind, KernelEntry, NodeIdx, Source,
};
use ferroflow_base::{Result, Status, data_loss, internal, ordered_map};
use ferroflow_opdef::{AttrValue, Attrs, Cost, FuncRef, Name, NodeInfo};
use ferroflow_tensor::{Bytes, DType, LazyTensor, PartialShape};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The maximum nesting of lists: attrs hold lists and functions with attrs.
const MAX_DEPTH: usize = 12;

/// Writes values; numbers strings, tensors and functions on the way.
#[derive(Default)]
pub(crate) struct Encoder {
    pub(super) out: Writer,
    /// Strings that were written, by number from 1.
    strings: HashMap<String, usize>,
    pub(crate) tensors: TensorTable,
    /// Numbers of the functions that bodies may call: those that were encoded before.
    pub(crate) functions: HashMap<*const Body, usize>,
}

impl Encoder {
    #[cfg(test)]
    pub(crate) fn finish(self) -> Vec<u8> {
        self.out.bytes
    }

    /// The only value of a section.
    pub(super) fn section(value: &impl Codec) -> Result<Writer> {
        let mut encoder = Encoder::default();
        value.encode(&mut encoder)?;
        Ok(encoder.out)
    }
}

/// Reads values.
pub(crate) struct Decoder<'a> {
    input: Reader<'a>,
    strings: Vec<&'a str>,
    /// Bytes that strings may still take: a damaged file might repeat a long one without end.
    left: usize,
    /// Lists around the value being read.
    depth: usize,
    tensors: &'a [LazyTensor],
    /// Functions that bodies may call, by number.
    pub(crate) functions: Vec<Arc<Body>>,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8], tensors: &'a [LazyTensor]) -> Decoder<'a> {
        Decoder {
            input: Reader::new(bytes, 0),
            strings: Vec::new(),
            left: bytes.len().saturating_mul(64),
            depth: 0,
            tensors,
            functions: Vec::new(),
        }
    }

    /// The next value. A body refers to what exists, but [`Body::verify`] is still to be called.
    pub(crate) fn value<T: Codec>(&mut self) -> Result<T> {
        T::decode(self).ok_or_else(corrupt)
    }

    /// The only value of a section.
    pub(super) fn section<T: Codec>(bytes: &'a [u8]) -> Result<T> {
        let mut decoder = Decoder::new(bytes, &[]);
        let value = decoder.value()?;
        decoder.finish().map(|()| value)
    }

    /// Fails unless all bytes were read.
    pub(crate) fn finish(&self) -> Result<()> {
        match self.input.is_empty() {
            true => Ok(()),
            false => Err(corrupt()),
        }
    }
}

#[cold]
pub(super) fn corrupt() -> Status {
    data_loss!("a section of the compiled model is corrupted in the BEF file")
}

/// A value with an encoding of at least one byte.
pub(crate) trait Codec: Sized {
    fn encode(&self, out: &mut Encoder) -> Result<()>;
    /// The next value; `None` if the bytes are not one.
    fn decode(input: &mut Decoder) -> Option<Self>;
}

impl Codec for usize {
    fn encode(&self, out: &mut Encoder) -> Result<()> {
        out.out.int(*self);
        Ok(())
    }

    fn decode(input: &mut Decoder) -> Option<Self> {
        input.input.int()
    }
}

/// Types that are encoded as another one.
macro_rules! codec_as {
    ($($ty:ty as $repr:ty: |$value:ident| $to:expr, |$read:ident| $from:expr;)*) => {$(
        impl Codec for $ty {
            fn encode(&self, out: &mut Encoder) -> Result<()> {
                let $value = self;
                Codec::encode(&$to, out)
            }

            fn decode(input: &mut Decoder) -> Option<Self> {
                let $read = <$repr>::decode(input)?;
                $from
            }
        }
    )*};
}

codec_as! {
    bool as usize: |v| usize::from(*v), |n| (n < 2).then_some(n == 1);
    u16 as usize: |v| usize::from(*v), |n| n.try_into().ok();
    u32 as usize: |v| *v as usize, |n| n.try_into().ok();
    // Small numbers of either sign are short.
    i64 as usize: |v| (*v << 1 ^ *v >> 63) as usize, |n| Some((n >> 1) as i64 ^ -((n & 1) as i64));
    f32 as u32: |v| v.to_bits(), |n| Some(f32::from_bits(n));
    NodeIdx as u32: |v| v.index(), |n| Some(NodeIdx::new(n as usize));
    FrameIdx as u32: |v| v.index(), |n| Some(FrameIdx::new(n as usize));
    DType as u32: |v| *v as usize, |n| DType::from_number(i32::try_from(n).ok()?);
    PartialShape as Option<Vec<i64>>:
        |v| v.dims().map(|d| d.iter().map(|d| d.map_or(-1, |d| d as i64)).collect::<Vec<_>>()),
        |dims| PartialShape::from_tf(dims.as_deref()).ok();
    Box<str> as String: |v| v.to_string(), |text| Some(text.into_boxed_str());
    Box<[FrameIdx]> as Vec<FrameIdx>: |v| v.to_vec(), |list| Some(list.into_boxed_slice());
    BTreeMap<String, Arc<Body>> as Vec<(String, Arc<Body>)>:
        |v| v.iter().map(|(k, f)| (k.clone(), f.clone())).collect::<Vec<_>>(),
        |list| Some(ordered_map(list));
    Attrs as Vec<(String, AttrValue)>:
        |v| v.iter().map(|(k, v)| (k.to_string(), v.clone())).collect::<Vec<_>>(),
        |list| {
            let n = list.len();
            let attrs: Attrs = list.into_iter().map(|(k, v)| (Name::Owned(k), v)).collect();
            (attrs.len() == n).then_some(attrs)
        };
}

impl Codec for String {
    fn encode(&self, out: &mut Encoder) -> Result<()> {
        let next = out.strings.len() + 1;
        match out.strings.get(self) {
            Some(number) => out.out.int(*number),
            None => {
                out.out.int(0);
                out.out.text(self);
                out.strings.insert(self.clone(), next);
            }
        }
        Ok(())
    }

    fn decode(input: &mut Decoder) -> Option<Self> {
        let text = match input.input.int()? {
            0 => {
                let text = std::str::from_utf8(input.input.raw()?).ok()?;
                input.strings.push(text);
                text
            }
            number => *input.strings.get(number - 1)?,
        };
        input.left = input.left.checked_sub(text.len())?;
        Some(text.to_string())
    }
}

impl Codec for Bytes {
    fn encode(&self, out: &mut Encoder) -> Result<()> {
        out.out.raw(self);
        Ok(())
    }

    fn decode(input: &mut Decoder) -> Option<Self> {
        input.input.raw().map(Bytes::copy_from_slice)
    }
}

impl<T: Codec> Codec for Option<T> {
    fn encode(&self, out: &mut Encoder) -> Result<()> {
        self.is_some().encode(out)?;
        self.iter().try_for_each(|value| value.encode(out))
    }

    fn decode(input: &mut Decoder) -> Option<Self> {
        match bool::decode(input)? {
            true => T::decode(input).map(Some),
            false => Some(None),
        }
    }
}

impl<T: Codec> Codec for Vec<T> {
    fn encode(&self, out: &mut Encoder) -> Result<()> {
        self.len().encode(out)?;
        self.iter().try_for_each(|value| value.encode(out))
    }

    fn decode(input: &mut Decoder) -> Option<Self> {
        let n = input.input.count().filter(|_| input.depth < MAX_DEPTH)?;
        input.depth += 1;
        let list = (0..n).map(|_| T::decode(input)).collect();
        input.depth -= 1;
        list
    }
}

impl<A: Codec, B: Codec> Codec for (A, B) {
    fn encode(&self, out: &mut Encoder) -> Result<()> {
        self.0.encode(out)?;
        self.1.encode(out)
    }

    fn decode(input: &mut Decoder) -> Option<Self> {
        Some((A::decode(input)?, B::decode(input)?))
    }
}

impl Codec for LazyTensor {
    fn encode(&self, out: &mut Encoder) -> Result<()> {
        out.tensors.add(self)?.encode(out)
    }

    fn decode(input: &mut Decoder) -> Option<Self> {
        let number = usize::decode(input)?;
        input.tensors.get(number).cloned()
    }
}

impl Codec for Arc<Body> {
    fn encode(&self, out: &mut Encoder) -> Result<()> {
        let number = out.functions.get(&Arc::as_ptr(self)).copied();
        let number = number.ok_or_else(|| internal!("a function is not encoded before its caller"));
        number?.encode(out)
    }

    fn decode(input: &mut Decoder) -> Option<Self> {
        let number = usize::decode(input)?;
        input.functions.get(number).cloned()
    }
}

impl Codec for Box<KernelEntry> {
    fn encode(&self, out: &mut Encoder) -> Result<()> {
        let entry = &**self;
        let encoded = entry.encode(out);
        encoded.map_err(|e| e.at_node(&entry.node, &entry.op))
    }

    fn decode(input: &mut Decoder) -> Option<Self> {
        KernelEntry::decode(input).map(Box::new)
    }
}

/// Structs as their fields, enums as a tag and the fields of the variant.
macro_rules! codec {
    (struct $ty:ident { $($field:ident),* }) => {
        impl Codec for $ty {
            fn encode(&self, out: &mut Encoder) -> Result<()> {
                $(self.$field.encode(out)?;)*
                Ok(())
            }

            fn decode(input: &mut Decoder) -> Option<Self> {
                Some($ty { $($field: Codec::decode(input)?),* })
            }
        }
    };
    (enum $ty:ident {
        $($tag:literal => $variant:ident $(($($item:ident),*))? $({ $($field:ident),* })?,)*
    }) => {
        impl Codec for $ty {
            fn encode(&self, out: &mut Encoder) -> Result<()> {
                match self {
                    $($ty::$variant $(($($item),*))? $({ $($field),* })? => {
                        out.out.byte($tag);
                        $($($item.encode(out)?;)*)?
                        $($($field.encode(out)?;)*)?
                    })*
                }
                Ok(())
            }

            fn decode(input: &mut Decoder) -> Option<Self> {
                Some(match input.input.byte()? {
                    $($tag => {
                        $($(let $item = Codec::decode(input)?;)*)?
                        $($(let $field = Codec::decode(input)?;)*)?
                        $ty::$variant $(($($item),*))? $({ $($field),* })?
                    })*
                    _ => return None,
                })
            }
        }
    };
}

codec!(struct Interface { feeds, fetches, targets, packing });
codec!(struct TensorEntry { dtype, dims, data });
codec!(enum TensorData { 0 => Inline(bytes), 1 => Far(start), 2 => Strings(strings), });
codec!(struct Port { key, name, dtype, shape });
codec!(struct Body { nodes, frames, consts, functions });
codec!(struct BodyFrame { name, kind, n_args, results, nodes });
codec!(struct BodyNode { info, action, inputs, controls, n_outputs, cost });
codec!(struct NodeInfo { name, op });
codec!(struct KernelEntry { op, node, device, attrs, inputs, outputs });
codec!(struct FuncRef { name, attrs });
codec!(enum Cost { 0 => Cheap, 1 => BySize, 2 => Expensive, 3 => Async, });
codec!(enum Source { 0 => Node(node, output), 1 => Const(constant), });
codec!(enum FrameKind { 0 => Function, 1 => Loop { parent, parallel_iterations }, });
codec!(enum BodyAction {
    0 => Kernel(entry),
    1 => Arg(index),
    2 => Const(constant),
    3 => Forward,
    4 => Switch,
    5 => SwitchN,
    6 => Merge,
    7 => Enter { frame, is_constant },
    8 => Exit,
    9 => NextIteration,
    10 => Trigger,
    11 => Call(function),
    12 => If { then_branch, else_branch },
    13 => Case(branches),
    14 => While { cond, body },
    15 => Send(key),
    16 => Recv(key),
});
codec!(enum AttrValue {
    0 => Str(text),
    1 => Int(value),
    2 => Float(value),
    3 => Bool(value),
    4 => Type(dtype),
    5 => Shape(shape),
    6 => Tensor(tensor),
    7 => Func(function),
    8 => Placeholder(name),
    9 => List(items),
});
