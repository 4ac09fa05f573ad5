//! Attrs as bytes: numbers of varying length, small ones short; strings that repeat and tensors by
//! number.

use super::codec::{Numbers, Strings, Texts, corrupt};
use ferroflow_base::Result;
use ferroflow_opdef::{AttrValue, Attrs, FuncRef, Name};
use ferroflow_tensor::{Bytes, DType, LazyTensor, PartialShape};

/// How deep attrs may be nested in functions and lists of attrs.
const MAX_DEPTH: usize = 8;

/// The kinds of attr values, by number.
const STR: u8 = 0;
const INT: u8 = 1;
const FLOAT: u8 = 2;
const BOOL: u8 = 3;
const TYPE: u8 = 4;
const SHAPE: u8 = 5;
const TENSOR: u8 = 6;
const FUNC: u8 = 7;
const PLACEHOLDER: u8 = 8;
const LIST: u8 = 9;

#[derive(Default)]
pub(super) struct AttrWriter {
    pub(super) bytes: Vec<u8>,
}

impl AttrWriter {
    fn count(&mut self, n: usize) {
        let mut n = n as u64;
        while n >= 0x80 {
            self.bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.bytes.push(n as u8);
    }

    fn int(&mut self, value: i64) {
        self.count((value << 1 ^ value >> 63) as usize);
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes.extend(bytes);
    }

    /// Attrs without their number.
    pub(super) fn attrs(
        &mut self,
        attrs: &Attrs,
        strings: &mut Strings,
        numbers: &mut dyn Numbers,
    ) -> Result<()> {
        for (name, value) in attrs.iter() {
            self.count(strings.add(name) as usize);
            self.attr(value, strings, numbers)?;
        }
        Ok(())
    }

    fn attr(
        &mut self,
        value: &AttrValue,
        strings: &mut Strings,
        numbers: &mut dyn Numbers,
    ) -> Result<()> {
        match value {
            AttrValue::Str(s) => {
                self.bytes.push(STR);
                self.raw(s);
            }
            AttrValue::Int(i) => {
                self.bytes.push(INT);
                self.int(*i);
            }
            AttrValue::Float(f) => {
                self.bytes.push(FLOAT);
                self.bytes.extend(f.to_le_bytes());
            }
            AttrValue::Bool(b) => self.bytes.extend([BOOL, u8::from(*b)]),
            AttrValue::Type(t) => {
                self.bytes.push(TYPE);
                self.int(*t as i64);
            }
            AttrValue::Shape(s) => {
                self.bytes.push(SHAPE);
                self.count(s.dims().map_or(0, |dims| dims.len() + 1));
                for dim in s.dims().unwrap_or_default() {
                    self.int(dim.map_or(-1, |d| d as i64));
                }
            }
            AttrValue::Tensor(t) => {
                self.bytes.push(TENSOR);
                self.count(numbers.tensor(t)? as usize);
            }
            AttrValue::Func(f) => {
                self.bytes.push(FUNC);
                self.count(strings.add(&f.name) as usize);
                self.count(f.attrs.len());
                self.attrs(&f.attrs, strings, numbers)?;
            }
            AttrValue::Placeholder(p) => {
                self.bytes.push(PLACEHOLDER);
                self.count(strings.add(p) as usize);
            }
            AttrValue::List(items) => {
                self.bytes.push(LIST);
                self.count(items.len());
                for item in items {
                    self.attr(item, strings, numbers)?;
                }
            }
        }
        Ok(())
    }
}

pub(super) struct AttrReader<'a> {
    /// What is left.
    bytes: &'a [u8],
    texts: &'a Texts<'a>,
    tensors: &'a [LazyTensor],
}

impl<'a> AttrReader<'a> {
    pub(super) fn new(bytes: &'a [u8], texts: &'a Texts<'a>, tensors: &'a [LazyTensor]) -> Self {
        AttrReader {
            bytes,
            texts,
            tensors,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.bytes.split_first().ok_or_else(corrupt)?;
        self.bytes = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(corrupt())
    }

    fn index(&mut self) -> Result<usize> {
        usize::try_from(self.number()?).map_err(|_| corrupt())
    }

    /// A number of things that take at least a byte each.
    fn count(&mut self) -> Result<usize> {
        let n = self.index()?;
        match n <= self.bytes.len() {
            true => Ok(n),
            false => Err(corrupt()),
        }
    }

    fn int(&mut self) -> Result<i64> {
        let n = self.number()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    fn text(&mut self) -> Result<String> {
        self.texts.get(self.index()?)
    }

    /// `n` attrs.
    pub(super) fn attrs(&mut self, n: usize, depth: usize) -> Result<Attrs> {
        if n > self.bytes.len() {
            return Err(corrupt());
        }
        let mut list = Vec::with_capacity(n.min(64));
        for _ in 0..n {
            list.push((Name::Owned(self.text()?), self.attr(depth)?));
        }
        let attrs: Attrs = list.into_iter().collect();
        match attrs.len() == n {
            true => Ok(attrs),
            false => Err(corrupt()),
        }
    }

    fn attr(&mut self, depth: usize) -> Result<AttrValue> {
        if depth > MAX_DEPTH {
            return Err(corrupt());
        }
        Ok(match self.byte()? {
            STR => {
                let n = self.count()?;
                let (text, rest) = self.bytes.split_at_checked(n).ok_or_else(corrupt)?;
                self.bytes = rest;
                AttrValue::Str(Bytes::copy_from_slice(text))
            }
            INT => AttrValue::Int(self.int()?),
            FLOAT => {
                let (bits, rest) = self.bytes.split_first_chunk().ok_or_else(corrupt)?;
                self.bytes = rest;
                AttrValue::Float(f32::from_le_bytes(*bits))
            }
            BOOL => AttrValue::Bool(self.byte()? != 0),
            TYPE => {
                let number = i32::try_from(self.int()?).ok();
                AttrValue::Type(number.and_then(DType::from_number).ok_or_else(corrupt)?)
            }
            SHAPE => AttrValue::Shape(match self.index()? {
                0 => PartialShape::unknown(),
                // A dimension takes a byte at least.
                n if n - 1 > self.bytes.len() => return Err(corrupt()),
                n => {
                    let dims: Vec<i64> = (1..n).map(|_| self.int()).collect::<Result<_>>()?;
                    PartialShape::from_tf(Some(&dims))?
                }
            }),
            TENSOR => {
                let tensor = self.tensors.get(self.index()?).cloned();
                AttrValue::Tensor(tensor.ok_or_else(corrupt)?)
            }
            FUNC => {
                let name = self.text()?;
                let n = self.count()?;
                let attrs = self.attrs(n, depth + 1)?;
                AttrValue::Func(FuncRef { name, attrs })
            }
            PLACEHOLDER => AttrValue::Placeholder(self.text()?),
            LIST => {
                let n = self.count()?;
                let items = (0..n).map(|_| self.attr(depth + 1));
                AttrValue::List(items.collect::<Result<_>>()?)
            }
            _ => return Err(corrupt()),
        })
    }
}
