//! Attributes.

use super::enums;
use super::types::{Decoded, Kind, Scalar};
use super::{MAX_DEPTH, Values};
use crate::bytecode::Cursor;
use crate::{Attr, Type};
use ferroflow_base::Result;

impl<'a> Values<'_, 'a> {
    /// Returns an attribute.
    pub(crate) fn attr(&mut self, i: usize) -> Result<Attr> {
        self.nested(i, 0)
    }

    fn nested(&mut self, i: usize, depth: usize) -> Result<Attr> {
        let entry = self.file.attrs[i];
        let mut at = entry.data.named("attributes");
        if depth > MAX_DEPTH {
            return Err(at.error(format_args!("attributes are nested {depth} deep")));
        }
        self.charge(size_of::<Attr>())?;
        let attr = match (entry.is_binary, entry.dialect) {
            (false, _) => {
                self.charge(at.remaining())?;
                Attr::Other(at.zero_ended()?)
            }
            (true, b"vhlo") => self.vhlo_attr(i, &mut at, depth)?,
            (true, b"builtin") => self.builtin_attr(i, &mut at, depth)?,
            (true, dialect) => {
                let dialect = String::from_utf8_lossy(dialect);
                return Ok(Attr::Other(format!("#{dialect}.attribute")));
            }
        };
        at.finish()?;
        Ok(attr)
    }

    /// Reads a reference to an attribute.
    fn attr_at(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Attr> {
        let i = at.index(self.file.attrs.len(), "attribute")?;
        self.nested(i, depth + 1)
    }

    /// Reads a reference to an attribute that is a string.
    fn name_at(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<String> {
        match self.attr_at(at, depth)? {
            Attr::Str(name) => Ok(name),
            other => Err(at.error(format_args!("a name is expected, not {other}"))),
        }
    }

    fn text(&mut self, at: &mut Cursor<'a>) -> Result<String> {
        let text = self.file.string(at)?;
        self.charge(text.len())?;
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn list(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Vec<Attr>> {
        (0..at.count()?).map(|_| self.attr_at(at, depth)).collect()
    }

    fn named_list(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Vec<(String, Attr)>> {
        let mut named = Vec::new();
        for _ in 0..at.count()? {
            named.push((self.name_at(at, depth)?, self.attr_at(at, depth)?));
        }
        Ok(named)
    }

    fn ints(&mut self, at: &mut Cursor<'a>) -> Result<Attr> {
        let ints = at.signed_list()?;
        self.charge(ints.len() * size_of::<Attr>())?;
        Ok(Attr::Array(ints.into_iter().map(Attr::Int).collect()))
    }

    fn vhlo_attr(&mut self, i: usize, at: &mut Cursor<'a>, depth: usize) -> Result<Attr> {
        let code = at.varint()?;
        if let Some(names) = enums::names(code) {
            let value = at.varint()?;
            let name = enums::name(names, value);
            let unknown = || at.error(format_args!("{value} of enumeration {code} is unknown"));
            return name.map(Attr::Enum).ok_or_else(unknown);
        }
        Ok(match code {
            1 => Attr::Array(self.list(at, depth)?),
            2 => match at.varint()? {
                0 => Attr::Bool(false),
                1 => Attr::Bool(true),
                n => return Err(at.error(format_args!("{n} is not a boolean"))),
            },
            6 => Attr::Dict(self.named_list(at, depth)?),
            8 | 9 => self.number(at, depth)?,
            10 => dict([
                ("output_tuple_indices", self.ints(at)?),
                ("operand_index", Attr::Int(at.signed()?)),
                ("operand_tuple_indices", self.ints(at)?),
            ]),
            14 => Attr::Str(self.text(at)?),
            15 => self.tensor(i, at, depth)?,
            17 => Attr::Type(self.type_in(at, depth)?),
            18 => dict([("bounds", self.ints(at)?)]),
            20 => dict([
                ("atol", Attr::Float(f64::from_bits(at.signed()? as u64))),
                ("rtol", Attr::Float(f64::from_bits(at.signed()? as u64))),
                ("ulps", Attr::Int(at.signed()?)),
                ("mode", self.attr_at(at, depth)?),
            ]),
            21..=25 => self.mesh_attr(code, at, depth)?,
            _ => return Err(at.error(format_args!("attribute {code} of VHLO is unknown"))),
        })
    }

    /// Reads an attribute about meshes of devices.
    fn mesh_attr(&mut self, code: u64, at: &mut Cursor<'a>, depth: usize) -> Result<Attr> {
        Ok(match code {
            21 => dict([
                ("pre_size", Attr::Int(at.signed()?)),
                ("size", Attr::Int(at.signed()?)),
            ]),
            22 => {
                let name = ("name", self.attr_at(at, depth)?);
                match at.varint()? {
                    0 => dict([name]),
                    _ => dict([name, ("sub_axis_info", self.attr_at(at, depth)?)]),
                }
            }
            23 => dict([
                ("mesh", self.attr_at(at, depth)?),
                ("axes", self.attr_at(at, depth)?),
            ]),
            24 => dict([
                ("name", self.attr_at(at, depth)?),
                ("size", Attr::Int(at.signed()?)),
            ]),
            _ => {
                let axes = ("axes", self.attr_at(at, depth)?);
                match self.optional(at)? {
                    None => dict([axes]),
                    Some(ids) => dict([axes, ("device_ids", self.nested(ids, depth + 1)?)]),
                }
            }
        })
    }

    /// Reads a reference to an attribute that may be missing.
    pub(super) fn optional(&mut self, at: &mut Cursor<'a>) -> Result<Option<usize>> {
        let (i, exists) = at.flagged()?;
        match exists {
            false => Ok(None),
            true => at
                .check_index(i, self.file.attrs.len(), "attribute")
                .map(Some),
        }
    }

    fn builtin_attr(&mut self, i: usize, at: &mut Cursor<'a>, depth: usize) -> Result<Attr> {
        let code = at.varint()?;
        Ok(match code {
            0 => Attr::Array(self.list(at, depth)?),
            1 => Attr::Dict(self.named_list(at, depth)?),
            2 => Attr::Str(self.text(at)?),
            3 => {
                let text = self.text(at)?;
                at.index(self.file.types.len(), "type")?;
                Attr::Str(text)
            }
            4 => Attr::Str(self.name_at(at, depth)?),
            5 => {
                let mut name = self.name_at(at, depth)?;
                for _ in 0..at.count()? {
                    name = name + "::" + &self.name_at(at, depth)?;
                }
                Attr::Str(name)
            }
            6 => Attr::Type(self.type_in(at, depth)?),
            7 => Attr::Unit,
            8 | 9 => self.number(at, depth)?,
            10..=15 | 22 => {
                at.take(at.remaining() as u64)?;
                Attr::Other("loc".to_string())
            }
            17 => self.dense_array(at, depth)?,
            18 => self.tensor(i, at, depth)?,
            _ => return Err(at.error(format_args!("attribute {code} of MLIR cannot be read"))),
        })
    }

    fn type_in(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Type> {
        let i = at.index(self.file.types.len(), "type")?;
        self.decoded_type(i, depth + 1)?;
        self.ty(i)
    }

    fn scalar_in(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Scalar> {
        let ty = self.nested_type(at, depth)?;
        match &*ty {
            Decoded::Scalar(scalar) => Ok(*scalar),
            _ => Err(at.error("a number has no type of numbers")),
        }
    }

    fn number(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Attr> {
        let scalar = self.scalar_in(at, depth)?;
        let bits = match scalar.bits {
            0 => return Err(at.error(format_args!("{} is not a number", scalar.name))),
            1..=8 => at.byte()?.into(),
            9..=64 => at.signed()? as u64,
            _ => return Err(at.error(format_args!("a number is of {}", scalar.name))),
        };
        Ok(number(scalar, bits))
    }

    fn dense_array(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Attr> {
        let scalar = self.scalar_in(at, depth)?;
        let n = at.varint()?;
        let bytes = at.blob()?;
        let size = scalar.bits.div_ceil(8) as usize;
        if size == 0 || size > 8 || n.checked_mul(size as u64) != Some(bytes.len() as u64) {
            return Err(at.error(format_args!("{n} numbers of {} bytes", bytes.len())));
        }
        self.charge(bytes.len() / size * size_of::<Attr>())?;
        let numbers = bytes.chunks_exact(size).map(|chunk| {
            let mut bits = [0; 8];
            bits[..size].copy_from_slice(chunk);
            number(scalar, u64::from_le_bytes(bits))
        });
        Ok(Attr::Array(numbers.collect()))
    }

    /// Returns the references in an attribute that is a dictionary of MLIR.
    pub(crate) fn dictionary(&mut self, i: usize) -> Result<Vec<(String, usize)>> {
        let entry = self.file.attrs[i];
        let mut at = entry.data.named("attributes");
        if !entry.is_binary || entry.dialect != b"builtin" || at.varint()? != 1 {
            return Err(at.error("the attributes of an op are not a dictionary"));
        }
        let mut named = Vec::new();
        for _ in 0..at.count()? {
            let name = self.name_at(&mut at, 0)?;
            self.charge(size_of::<(String, usize)>())?;
            named.push((name, at.index(self.file.attrs.len(), "attribute")?));
        }
        at.finish()?;
        Ok(named)
    }

    /// Returns the types of parameters and results in an attribute that is the type of a function.
    pub(crate) fn function_type(&mut self, i: usize) -> Result<(Vec<Type>, Vec<Type>)> {
        let entry = self.file.attrs[i];
        let mut at = entry.data.named("attributes");
        let codes = [(&b"vhlo"[..], 17), (&b"builtin"[..], 6)];
        if !entry.is_binary || !codes.contains(&(entry.dialect, at.varint()?)) {
            return Err(at.error("the type of a function is not a type"));
        }
        let ty = self.nested_type(&mut at, 0)?;
        match &*ty {
            Decoded::Function(args, results) => {
                self.charge(ty.size())?;
                Ok((args.clone(), results.clone()))
            }
            _ => Err(at.error("the type of a function is that of a value")),
        }
    }
}

fn dict<const N: usize>(entries: [(&str, Attr); N]) -> Attr {
    let entries = entries.map(|(name, attr)| (name.to_string(), attr));
    Attr::Dict(entries.into())
}

/// Returns a number by its bits.
fn number(scalar: Scalar, bits: u64) -> Attr {
    let unused = 64 - scalar.bits;
    let bits = bits << unused >> unused;
    match scalar.kind {
        Kind::Bool => Attr::Bool(bits != 0),
        Kind::Signed => Attr::Int((bits << unused) as i64 >> unused),
        Kind::Unsigned => Attr::Int(bits as i64),
        Kind::Float(mantissa) => Attr::Float(float(bits, scalar.bits, mantissa)),
        Kind::Other => Attr::Other(format!("{bits:#x} : {}", scalar.name)),
    }
}

/// Returns a float of IEEE 754 by its bits, of which the lowest `mantissa` are the mantissa.
fn float(bits: u64, width: u32, mantissa: u32) -> f64 {
    if width == 64 {
        return f64::from_bits(bits);
    }
    let largest = (1 << (width - 1 - mantissa)) - 1;
    let exponent = bits >> mantissa & largest;
    let fraction = (bits & ((1 << mantissa) - 1)) as f64 / (1u64 << mantissa) as f64;
    let bias = (largest >> 1) as i32;
    let magnitude = match exponent {
        e if e == largest && fraction == 0.0 => f64::INFINITY,
        e if e == largest => f64::NAN,
        0 => fraction * 2f64.powi(1 - bias),
        e => (1.0 + fraction) * 2f64.powi(e as i32 - bias),
    };
    match bits >> (width - 1) & 1 {
        0 => magnitude,
        _ => -magnitude,
    }
}
