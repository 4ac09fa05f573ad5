//! Types.

use super::{MAX_DEPTH, Values};
use crate::bytecode::Cursor;
use crate::{TensorType, Type};
use ferroflow_base::Result;
use ferroflow_tensor::DType;
use std::rc::Rc;

/// The size of a dynamic dimension.
const DYNAMIC: i64 = i64::MIN;

/// A type.
pub(super) enum Decoded {
    Scalar(Scalar),
    Function(Vec<Type>, Vec<Type>),
    Type(Type),
}

/// The type of an element of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Scalar {
    pub(super) name: &'static str,
    /// The dtype, if there is one.
    dtype: Option<DType>,
    pub(super) bits: u32,
    pub(super) kind: Kind,
}

/// What the bits of a scalar mean.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Bool,
    Signed,
    Unsigned,
    /// A float of IEEE 754, with the number of bits of its mantissa.
    Float(u32),
    Other,
}

const fn scalar(name: &'static str, dtype: Option<DType>, bits: u32, kind: Kind) -> Scalar {
    Scalar {
        name,
        dtype,
        bits,
        kind,
    }
}

/// The scalars by their code in VHLO.
#[rustfmt::skip]
const VHLO: &[(u64, Scalar)] = &[
    (0, scalar("i1", Some(DType::Bool), 1, Kind::Bool)),
    (2, scalar("bf16", Some(DType::Bfloat16), 16, Kind::Float(7))),
    (3, scalar("f16", Some(DType::Half), 16, Kind::Float(10))),
    (4, scalar("f32", Some(DType::Float), 32, Kind::Float(23))),
    (5, scalar("f64", Some(DType::Double), 64, Kind::Float(52))),
    (6, scalar("f8E4M3FN", Some(DType::Float8E4m3fn), 8, Kind::Other)),
    (7, scalar("f8E5M2", Some(DType::Float8E5m2), 8, Kind::Float(2))),
    (9, scalar("index", Some(DType::Int64), 64, Kind::Signed)),
    (10, scalar("i4", Some(DType::Int4), 4, Kind::Signed)),
    (11, scalar("i8", Some(DType::Int8), 8, Kind::Signed)),
    (12, scalar("i16", Some(DType::Int16), 16, Kind::Signed)),
    (13, scalar("i32", Some(DType::Int32), 32, Kind::Signed)),
    (14, scalar("i64", Some(DType::Int64), 64, Kind::Signed)),
    (15, scalar("ui4", Some(DType::Uint4), 4, Kind::Unsigned)),
    (16, scalar("ui8", Some(DType::Uint8), 8, Kind::Unsigned)),
    (17, scalar("ui16", Some(DType::Uint16), 16, Kind::Unsigned)),
    (18, scalar("ui32", Some(DType::Uint32), 32, Kind::Unsigned)),
    (19, scalar("ui64", Some(DType::Uint64), 64, Kind::Unsigned)),
    (26, scalar("witness", None, 0, Kind::Other)),
    (27, scalar("f8E4M3FNUZ", Some(DType::Float8E4m3fnuz), 8, Kind::Other)),
    (28, scalar("f8E5M2FNUZ", Some(DType::Float8E5m2fnuz), 8, Kind::Other)),
    (29, scalar("f8E4M3B11FNUZ", Some(DType::Float8E4m3b11fnuz), 8, Kind::Other)),
    (31, scalar("i2", Some(DType::Int2), 2, Kind::Signed)),
    (32, scalar("ui2", Some(DType::Uint2), 2, Kind::Unsigned)),
    (33, scalar("none", None, 0, Kind::Other)),
    (34, scalar("tf32", None, 19, Kind::Other)),
    (35, scalar("f8E4M3", None, 8, Kind::Float(3))),
    (36, scalar("f8E3M4", None, 8, Kind::Float(4))),
    (37, scalar("f4E2M1FN", Some(DType::Float4E2m1fn), 4, Kind::Other)),
    (38, scalar("f6E2M3FN", None, 6, Kind::Other)),
    (39, scalar("f6E3M2FN", None, 6, Kind::Other)),
    (40, scalar("f8E8M0FNU", None, 8, Kind::Other)),
];

/// The scalars by their code in MLIR's own dialect, but for integers.
const BUILTIN: &[(u64, &str)] = &[
    (1, "index"),
    (3, "bf16"),
    (4, "f16"),
    (5, "f32"),
    (6, "f64"),
    (12, "none"),
];

/// Returns a scalar by its code in VHLO.
fn vhlo_scalar(code: u64) -> Option<Scalar> {
    let found = VHLO.iter().find(|(c, _)| *c == code);
    found.map(|(_, scalar)| *scalar)
}

fn named_scalar(name: &str) -> Option<Scalar> {
    let mut all = VHLO.iter().map(|(_, scalar)| *scalar);
    all.find(|scalar| scalar.name == name)
}

/// Returns an integer of MLIR's own dialect.
fn builtin_integer(code: u64) -> Option<Scalar> {
    let (width, is_unsigned) = (code >> 2, code & 3 == 2);
    named_scalar(&format!("{}i{width}", if is_unsigned { "u" } else { "" }))
}

impl Decoded {
    /// Returns the type of values.
    fn to_type(&self) -> Type {
        match self {
            Decoded::Scalar(scalar) => Type::Other(scalar.name.to_string()),
            Decoded::Type(ty) => ty.clone(),
            Decoded::Function(args, results) => {
                let text = |types: &[Type]| Type::Tuple(types.to_vec()).to_string();
                Type::Other(format!("{} -> {}", text(args), text(results)))
            }
        }
    }

    /// Returns about how many bytes a copy takes.
    pub(super) fn size(&self) -> usize {
        match self {
            Decoded::Scalar(_) => 64,
            Decoded::Type(ty) => size(ty),
            Decoded::Function(args, results) => args.iter().chain(results).map(size).sum(),
        }
    }
}

/// Returns about how many bytes a copy of a type takes.
fn size(ty: &Type) -> usize {
    let inside = match ty {
        Type::Tensor(ty) => size_of::<Option<usize>>() * ty.dims.len(),
        Type::Tuple(types) => types.iter().map(size).sum(),
        Type::Other(text) => text.len(),
        Type::Token => 0,
    };
    size_of::<Type>() + inside
}

impl<'a> Values<'_, 'a> {
    /// Returns a type, of values.
    pub(crate) fn ty(&mut self, i: usize) -> Result<Type> {
        let decoded = self.decoded_type(i, 0)?;
        self.copy(&decoded)
    }

    fn copy(&mut self, decoded: &Decoded) -> Result<Type> {
        self.charge(decoded.size())?;
        Ok(decoded.to_type())
    }

    pub(super) fn decoded_type(&mut self, i: usize, depth: usize) -> Result<Rc<Decoded>> {
        if let Some(Some(done)) = self.types.get(i) {
            return Ok(done.clone());
        }
        let entry = self.file.types[i];
        let mut at = entry.data.named("types");
        if depth > MAX_DEPTH {
            return Err(at.error(format_args!("types are nested {depth} deep")));
        }
        let decoded = match (entry.is_binary, entry.dialect) {
            (false, _) => {
                let text = at.zero_ended()?;
                Decoded::Type(Type::Other(text))
            }
            (true, b"vhlo") => self.vhlo_type(&mut at, depth)?,
            (true, b"builtin") => self.builtin_type(&mut at, depth)?,
            (true, dialect) => {
                let dialect = String::from_utf8_lossy(dialect);
                return Ok(Rc::new(other(format!("!{dialect}.type"))));
            }
        };
        at.finish()?;
        self.charge(decoded.size())?;
        let decoded = Rc::new(decoded);
        self.types[i] = Some(decoded.clone());
        Ok(decoded)
    }

    /// Reads a reference to a type.
    pub(super) fn nested_type(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Rc<Decoded>> {
        let i = at.index(self.file.types.len(), "type")?;
        self.decoded_type(i, depth + 1)
    }

    fn type_list(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Vec<Type>> {
        let mut types = Vec::new();
        for _ in 0..at.count()? {
            let ty = self.nested_type(at, depth)?;
            types.push(self.copy(&ty)?);
        }
        Ok(types)
    }

    fn vhlo_type(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Decoded> {
        let code = at.varint()?;
        if let Some(scalar) = vhlo_scalar(code) {
            return Ok(Decoded::Scalar(scalar));
        }
        Ok(match code {
            1 => complex(&*self.nested_type(at, depth)?),
            8 => Decoded::Function(self.type_list(at, depth)?, self.type_list(at, depth)?),
            20 => self.tensor_type(at, depth)?,
            21 => {
                // The bounds of dynamic dimensions.
                at.index(self.file.attrs.len(), "attribute")?;
                self.tensor_type(at, depth)?
            }
            22 => Decoded::Type(Type::Token),
            23 => Decoded::Type(Type::Tuple(self.type_list(at, depth)?)),
            24 => self.quantized(at, depth)?,
            25 => {
                let element = self.nested_text(at, depth)?;
                other(format!("tensor<*x{element}>"))
            }
            30 => self.quantized_per_axis(at, depth)?,
            41 => {
                let dims = at.signed_list()?;
                let element = self.nested_text(at, depth)?;
                other(format!("buffer<{}>", shaped(&dims, &element)))
            }
            42 => {
                let types = Type::Tuple(self.type_list(at, depth)?);
                other(format!("future<{types}>"))
            }
            _ => return Err(at.error(format_args!("type {code} of VHLO is unknown"))),
        })
    }

    fn builtin_type(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Decoded> {
        let code = at.varint()?;
        let name = BUILTIN.iter().find(|(c, _)| *c == code);
        if let Some(scalar) = name.and_then(|(_, name)| named_scalar(name)) {
            return Ok(Decoded::Scalar(scalar));
        }
        Ok(match code {
            0 => {
                let code = at.varint()?;
                match builtin_integer(code) {
                    Some(scalar) => Decoded::Scalar(scalar),
                    None => other(format!("i{}", code >> 2)),
                }
            }
            2 => Decoded::Function(self.type_list(at, depth)?, self.type_list(at, depth)?),
            9 => complex(&*self.nested_type(at, depth)?),
            13 => self.tensor_type(at, depth)?,
            14 => {
                at.index(self.file.attrs.len(), "attribute")?;
                self.tensor_type(at, depth)?
            }
            15 => Decoded::Type(Type::Tuple(self.type_list(at, depth)?)),
            _ => return Err(at.error(format_args!("type {code} of MLIR cannot be read"))),
        })
    }

    /// Returns a referenced type as text.
    fn nested_text(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<String> {
        let ty = self.nested_type(at, depth)?;
        Ok(self.copy(&ty)?.to_string())
    }

    fn tensor_type(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Decoded> {
        let start = *at;
        let dims = at.signed_list()?;
        let element = self.nested_type(at, depth)?;
        let dtype = match &*element {
            Decoded::Scalar(scalar) => scalar.dtype,
            _ => None,
        };
        let Some(dtype) = dtype else {
            let element = self.copy(&element)?.to_string();
            return Ok(other(format!("tensor<{}>", shaped(&dims, &element))));
        };
        let dims = dims.into_iter().map(|d| match d {
            DYNAMIC => Ok(None),
            d => match usize::try_from(d) {
                Ok(d) => Ok(Some(d)),
                Err(_) => Err(start.error(format_args!("a tensor has the dimension {d}"))),
            },
        });
        let dims = dims.collect::<Result<_>>()?;
        Ok(Decoded::Type(Type::Tensor(TensorType { dims, dtype })))
    }

    fn quantized(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Decoded> {
        at.varint()?;
        let (storage, expressed) = (self.nested_text(at, depth)?, self.nested_text(at, depth)?);
        let scale = f64::from_bits(at.signed()? as u64);
        let zero = at.signed()?;
        let (min, max) = (at.signed()?, at.signed()?);
        Ok(other(format!(
            "quant<{storage}<{min}:{max}>:{expressed}, {scale}:{zero}>"
        )))
    }

    fn quantized_per_axis(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Decoded> {
        at.varint()?;
        let (storage, expressed) = (self.nested_text(at, depth)?, self.nested_text(at, depth)?);
        let axis = at.varint()?;
        let (min, max) = (at.signed()?, at.signed()?);
        let scales: Vec<_> = at.signed_list()?;
        let scales: Vec<_> = scales.iter().map(|s| f64::from_bits(*s as u64)).collect();
        let zeros = at.signed_list()?;
        Ok(other(format!(
            "quant<{storage}<{min}:{max}>:{expressed}:{axis}, {scales:?}:{zeros:?}>"
        )))
    }
}

fn other(text: String) -> Decoded {
    Decoded::Type(Type::Other(text))
}

/// Returns a type with dimensions as MLIR writes it.
fn shaped(dims: &[i64], element: &str) -> String {
    let mut text = String::new();
    for d in dims {
        match *d {
            DYNAMIC => text.push_str("?x"),
            d => text.push_str(&format!("{d}x")),
        }
    }
    text + element
}

fn complex(element: &Decoded) -> Decoded {
    let (name, dtype, bits) = match element {
        Decoded::Scalar(Scalar { name: "f32", .. }) => ("complex<f32>", Some(DType::Complex64), 64),
        Decoded::Scalar(Scalar { name: "f64", .. }) => {
            ("complex<f64>", Some(DType::Complex128), 128)
        }
        _ => ("complex", None, 0),
    };
    Decoded::Scalar(scalar(name, dtype, bits, Kind::Other))
}
