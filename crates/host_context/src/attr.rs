//! Attributes in the attributes section of a BEF file.
//!
//! A kernel gets an offset. *Untyped* attributes are plain values at that offset; strings and
//! arrays have their length in front of it, backwards. *Typed* ones begin with a header: kind (2
//! bytes), size (6 bytes). All reading is checked: a wrong offset is an error.

use ferroflow_base::{Result, invalid_argument};

/// A data type, by its number in BEF files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostDType(pub u8);

/// `(number, name, bytes)` of all data types, including complex numbers and strings.
const DTYPES: &[(u8, &str, usize)] = &[
    (1, "ui8", 1),
    (2, "ui16", 2),
    (3, "ui32", 4),
    (4, "ui64", 8),
    (5, "i1", 1),
    (6, "i8", 1),
    (7, "i16", 2),
    (8, "i32", 4),
    (9, "i64", 8),
    (10, "f32", 4),
    (11, "f64", 8),
    (12, "complex<f32>", 8),
    (13, "complex<f64>", 16),
    (14, "f16", 2),
    (15, "bf16", 2),
    (16, "!corert.string", 0),
    (17, "!corert.resource", 0),
    (18, "!corert.variant", 0),
    // Numbers from 20 on are kinds of attributes.
    (19, "!corert.quint8", 1),
    (24, "!corert.quint16", 2),
    (25, "!corert.qint8", 1),
    (26, "!corert.qint16", 2),
    (27, "!corert.qint32", 4),
];

#[allow(missing_docs, reason = "the names say it")]
impl HostDType {
    pub const UI8: Self = Self(1);
    pub const UI64: Self = Self(4);
    pub const I1: Self = Self(5);
    pub const I8: Self = Self(6);
    pub const I32: Self = Self(8);
    pub const I64: Self = Self(9);
    pub const F32: Self = Self(10);
    pub const F64: Self = Self(11);
    pub const F16: Self = Self(14);
    pub const BF16: Self = Self(15);
    pub const STRING: Self = Self(16);

    fn row(self) -> Option<&'static (u8, &'static str, usize)> {
        // The first rows are in the order of their numbers, from 1.
        let likely = DTYPES.get(usize::from(self.0).wrapping_sub(1));
        let is_row = |d: &&(u8, &str, usize)| d.0 == self.0;
        likely.filter(is_row).or_else(|| DTYPES.iter().find(is_row))
    }

    /// Returns the type's name in MLIR text.
    pub fn name(self) -> Option<&'static str> {
        self.row().map(|d| d.1)
    }

    /// Returns the type with this name in MLIR text.
    pub fn from_name(name: &str) -> Option<Self> {
        DTYPES.iter().find(|d| d.1 == name).map(|d| Self(d.0))
    }

    /// Returns the size of an element in bytes; `None` for types without a fixed size.
    pub fn size(self) -> Option<usize> {
        let size = self.row()?.2;
        (size > 0).then_some(size)
    }
}

/// Kinds of attributes beyond the data types, and the bits that combine with those.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttrKind(pub u16);

#[allow(missing_docs, reason = "the names say it")]
impl AttrKind {
    /// One more than the last data type.
    pub const TYPE: Self = Self(20);
    pub const SHAPE: Self = Self(21);
    pub const SYMBOL_REF: Self = Self(22);
    pub const ARRAY: u16 = 1 << 8;
    pub const DENSE: u16 = 1 << 9;
    pub const AGGREGATE: Self = Self(1 << 10);
    pub const FUNC: Self = Self((1 << 10) + 1);

    pub fn scalar(dtype: HostDType) -> Self {
        Self(dtype.0.into())
    }

    pub fn is_array(self) -> bool {
        self.0 & Self::ARRAY != 0 && self.0 < Self::DENSE
    }

    pub fn is_dense(self) -> bool {
        self.0 & Self::DENSE != 0 && self.0 < Self::AGGREGATE.0
    }

    /// Returns whether all attributes of the kind have a header.
    pub fn has_header(self) -> bool {
        self.is_dense() || [Self::SHAPE, Self::AGGREGATE, Self::FUNC].contains(&self)
    }

    /// Returns the data type of a scalar, or of the elements of an array or a dense attribute.
    pub fn dtype(self) -> HostDType {
        HostDType((self.0 & 0xff) as u8)
    }
}

/// ```
/// use ferroflow_host_context::{AttrKind, HostDType};
/// let i32 = HostDType::from_name("i32").unwrap();
/// assert_eq!(AttrKind::scalar(i32).to_string(), "i32");
/// assert_eq!(AttrKind(AttrKind::ARRAY | u16::from(i32.0)).to_string(), "an array of i32");
/// ```
impl std::fmt::Display for AttrKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let element = self.dtype().name();
        match (*self, element) {
            (Self::TYPE, _) => f.write_str("a type"),
            (Self::SHAPE, _) => f.write_str("a shape"),
            (Self::SYMBOL_REF, _) => f.write_str("a symbol"),
            (Self::AGGREGATE, _) => f.write_str("a list"),
            (Self::FUNC, _) => f.write_str("a function"),
            (_, Some(name)) if self.is_array() => write!(f, "an array of {name}"),
            (_, Some(name)) if self.is_dense() => write!(f, "dense {name}"),
            (_, Some(name)) => f.write_str(name),
            (Self(number), None) => write!(f, "of the unknown kind {number:#x}"),
        }
    }
}

/// An attribute in its section.
#[derive(Clone, Copy)]
pub struct Attribute<'a> {
    section: &'a [u8],
    offset: usize,
    /// Its kind, if the file records it.
    kind: Option<AttrKind>,
}

fn malformed(what: &str) -> ferroflow_base::Status {
    invalid_argument!("malformed attribute in BEF file: {what}")
}

/// A number that can be an attribute.
pub trait AttrNumber: Copy {
    /// Its data type.
    const DTYPE: HostDType;
    /// Decodes little-endian bytes, as many as the data type has.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

macro_rules! attr_number {
    ($($ty:ty => $dtype:expr),* $(,)?) => {
        $(impl AttrNumber for $ty {
            const DTYPE: HostDType = $dtype;
            fn from_bytes(bytes: &[u8]) -> Option<Self> {
                Some(<$ty>::from_le_bytes(bytes.try_into().ok()?))
            }
        })*
    };
}
attr_number!(i8 => HostDType(6), i16 => HostDType(7), i32 => HostDType(8), i64 => HostDType(9),
    u8 => HostDType(1), u16 => HostDType(2), u32 => HostDType(3), u64 => HostDType(4),
    f32 => HostDType(10), f64 => HostDType(11));

impl AttrNumber for bool {
    const DTYPE: HostDType = HostDType::I1;
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(*bytes.first()? != 0)
    }
}

impl AttrNumber for HostDType {
    const DTYPE: HostDType = HostDType(20);
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(HostDType(*bytes.first()?))
    }
}

/// Returns the size of a number of a kind that arrays may hold.
fn number_size(dtype: HostDType) -> Option<usize> {
    if dtype.0 == AttrKind::TYPE.0 as u8 {
        return Some(1);
    }
    dtype.size()
}

impl<'a> Attribute<'a> {
    /// Returns the attribute at `offset` of `section`; pass `kind` if it is known.
    pub fn new(section: &'a [u8], offset: usize, kind: Option<AttrKind>) -> Self {
        Attribute {
            section,
            offset,
            kind,
        }
    }

    /// Returns the kind, if the file records it.
    pub fn kind(self) -> Option<AttrKind> {
        self.kind
    }

    fn check(self, wanted: AttrKind) -> Result<()> {
        match self.kind {
            Some(kind) if kind != wanted => Err(invalid_argument!(
                "an attribute is {kind}, kernel expects {wanted}"
            )),
            _ => Ok(()),
        }
    }

    fn bytes(self, at: usize, n: usize) -> Result<&'a [u8]> {
        at.checked_add(n)
            .and_then(|end| self.section.get(at..end))
            .ok_or_else(|| malformed("beyond the section"))
    }

    /// Returns a number.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attribute is of another kind or outside the section.
    pub fn number<T: AttrNumber>(self) -> Result<T> {
        self.check(AttrKind(T::DTYPE.0.into()))?;
        let size = number_size(T::DTYPE).unwrap_or(1);
        let bytes = self.bytes(self.offset, size)?;
        T::from_bytes(bytes).ok_or_else(|| malformed("number"))
    }

    /// Returns the length in front of `at`, backwards, and the position where it begins.
    fn length_before(self, mut at: usize) -> Result<(usize, usize)> {
        let mut length = 0usize;
        loop {
            at = at.checked_sub(1).ok_or_else(|| malformed("length"))?;
            let byte = *self.section.get(at).ok_or_else(|| malformed("length"))?;
            if length > usize::MAX >> 7 {
                return Err(malformed("length"));
            }
            length = length << 7 | usize::from(byte & 0x7f);
            if byte & 0x80 == 0 {
                return Ok((length, at));
            }
        }
    }

    /// Returns the bytes of a string.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attribute is of another kind or outside the section.
    pub fn string_bytes(self) -> Result<&'a [u8]> {
        self.check(AttrKind::scalar(HostDType::STRING))?;
        let (length, _) = self.length_before(self.offset)?;
        self.bytes(self.offset, length)
    }

    /// Returns a string.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attribute is of another kind, outside the section, or not UTF-8.
    pub fn string(self) -> Result<&'a str> {
        std::str::from_utf8(self.string_bytes()?).map_err(|_| malformed("string"))
    }

    /// Returns the raw elements of an array: `(count, bytes)`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the array is outside the section.
    pub fn array_bytes(self, dtype: HostDType) -> Result<(usize, &'a [u8])> {
        let (length, _) = self.length_before(self.offset)?;
        let size = number_size(dtype).ok_or_else(|| malformed("array"))?;
        let n = length.checked_mul(size).ok_or_else(|| malformed("array"))?;
        Ok((length, self.bytes(self.offset, n)?))
    }

    /// Like [`array_bytes`](Self::array_bytes), and checks the kind if the file records it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attribute is of another kind or outside the section.
    pub fn checked_array_bytes(self, dtype: HostDType) -> Result<(usize, &'a [u8])> {
        let (length, bytes) = self.array_bytes(dtype)?;
        if length > 0 {
            self.check(AttrKind(u16::from(dtype.0) | AttrKind::ARRAY))?;
        }
        Ok((length, bytes))
    }

    /// Returns an array of numbers.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attribute is of another kind or outside the section.
    pub fn array<T: AttrNumber>(self) -> Result<Vec<T>> {
        let (_, bytes) = self.checked_array_bytes(T::DTYPE)?;
        let size = number_size(T::DTYPE).unwrap_or(1);
        let numbers = bytes.chunks(size).map(T::from_bytes);
        numbers
            .collect::<Option<_>>()
            .ok_or_else(|| malformed("array"))
    }

    /// Returns a reference to a function in a compiled module: the path of names, and the module's
    /// text.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attribute is malformed.
    pub fn symbol_ref(self) -> Result<(Vec<&'a str>, &'a str)> {
        let (root, at) = self.length_before(self.offset)?;
        let (n_nested, mut at) = self.length_before(at)?;
        let mut lengths = vec![root];
        for _ in 0..n_nested {
            let (length, next) = self.length_before(at)?;
            lengths.push(length);
            at = next;
        }
        let (text_length, _) = self.length_before(at)?;
        let mut from = self.offset;
        let mut next = |n: usize| {
            let bytes = self.bytes(from, n)?;
            from += n;
            std::str::from_utf8(bytes).map_err(|_| malformed("symbol"))
        };
        let path = lengths.into_iter().map(&mut next).collect::<Result<_>>()?;
        Ok((path, next(text_length)?))
    }

    /// Returns an attribute that begins with a header.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attribute has no header or is malformed.
    pub fn typed(self) -> Result<TypedAttr<'a>> {
        if let Some(kind) = self.kind.filter(|k| !k.has_header()) {
            return Err(invalid_argument!(
                "an attribute is {kind}, kernel expects a list, a shape or a dense one"
            ));
        }
        self.typed_at(self.offset, 0)
    }

    fn u16_at(self, at: usize) -> Result<u16> {
        u16::from_bytes(self.bytes(at, 2)?).ok_or_else(|| malformed("header"))
    }

    fn u32_at(self, at: usize) -> Result<usize> {
        let value = u32::from_bytes(self.bytes(at, 4)?);
        Ok(value.ok_or_else(|| malformed("header"))? as usize)
    }

    fn i64s_at(self, at: usize, n: usize) -> Result<Vec<i64>> {
        let bytes = self.bytes(at, n.checked_mul(8).ok_or_else(|| malformed("shape"))?)?;
        let dims = bytes.chunks(8).map(i64::from_bytes);
        dims.collect::<Option<_>>()
            .ok_or_else(|| malformed("shape"))
    }

    fn typed_at(self, at: usize, depth: usize) -> Result<TypedAttr<'a>> {
        if depth > 16 {
            return Err(malformed("nested too deeply"));
        }
        let kind = AttrKind(self.u16_at(at)?);
        let high = usize::from(self.u16_at(at + 2)?);
        let size = high << 32 | self.u32_at(at + 4)?;
        self.bytes(at, size)?;
        let inner = |offset: usize| {
            at.checked_add(offset)
                .filter(|_| offset <= size)
                .ok_or_else(|| malformed("offset"))
        };
        if kind == AttrKind::AGGREGATE {
            let n = self.u32_at(at + 8)?;
            self.bytes(
                at + 12,
                n.checked_mul(4).ok_or_else(|| malformed("aggregate"))?,
            )?;
            let element = |i: usize| {
                let offset = self.u32_at(at + 12 + 4 * i)?;
                // Elements come after their list, so a list cannot contain itself.
                if offset < 12 {
                    return Err(malformed("offset"));
                }
                self.typed_at(inner(offset)?, depth + 1)
            };
            let elements = (0..n).map(element).collect::<Result<_>>()?;
            return Ok(TypedAttr::Aggregate(elements));
        }
        if kind == AttrKind::FUNC {
            let name = self.bytes(at + 8, size.saturating_sub(8))?;
            return Ok(TypedAttr::Func(
                std::str::from_utf8(name).map_err(|_| malformed("name"))?,
            ));
        }
        if kind == AttrKind::SHAPE {
            let rank = usize::from(self.u16_at(at + 10)?);
            return Ok(TypedAttr::Shape(match self.bytes(at + 8, 1)? {
                [0] => None,
                _ => Some(self.i64s_at(at + 16, rank)?),
            }));
        }
        if kind.is_array() {
            let n = self.u32_at(at + 8)?;
            let elements = inner(self.u32_at(at + 12)?)?;
            let width = number_size(kind.dtype()).ok_or_else(|| malformed("array"))?;
            let n_bytes = n.checked_mul(width).ok_or_else(|| malformed("array"))?;
            return Ok(TypedAttr::Array {
                dtype: kind.dtype(),
                bytes: self.bytes(elements, n_bytes)?,
                count: n,
            });
        }
        if kind.is_dense() {
            let rank = usize::from(self.u16_at(at + 8)?);
            let shape_at = inner(usize::from(self.u16_at(at + 10)?))?;
            let shape = self.i64s_at(shape_at, rank)?;
            let n = self.u32_at(at + 12)?;
            let counted = shape
                .iter()
                .try_fold(1usize, |n, d| n.checked_mul(usize::try_from(*d).ok()?));
            if counted != Some(n) {
                return Err(malformed("dense shape"));
            }
            let elements = inner(self.u32_at(at + 16)?)?;
            let width = kind.dtype().size().ok_or_else(|| malformed("dense"))?;
            let n_bytes = n.checked_mul(width).ok_or_else(|| malformed("dense"))?;
            return Ok(TypedAttr::Dense {
                dtype: kind.dtype(),
                shape,
                bytes: self.bytes(elements, n_bytes)?,
            });
        }
        if kind == AttrKind::scalar(HostDType::STRING) {
            let bytes = self.bytes(at + 8, size.saturating_sub(8))?;
            return Ok(TypedAttr::String(bytes));
        }
        if kind == AttrKind::TYPE {
            let [number] = self.bytes(at + 8, 1)? else {
                return Err(malformed("type"));
            };
            return Ok(TypedAttr::Type(HostDType(*number)));
        }
        let width = kind.dtype().size().ok_or_else(|| malformed("kind"))?;
        if kind.0 > u16::from(u8::MAX) {
            return Err(malformed("kind"));
        }
        Ok(TypedAttr::Number {
            dtype: kind.dtype(),
            bytes: self.bytes(at + 8, width)?,
        })
    }
}

/// A decoded attribute with a header.
#[derive(Clone, Debug, PartialEq)]
pub enum TypedAttr<'a> {
    /// A number, little endian.
    Number {
        /// Its type.
        dtype: HostDType,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// Text.
    String(&'a [u8]),
    /// A data type.
    Type(HostDType),
    /// A shape; `None` if unranked, -1 for an unknown dimension.
    Shape(Option<Vec<i64>>),
    /// Numbers of one type.
    Array {
        /// Their type.
        dtype: HostDType,
        /// Their number.
        count: usize,
        /// Their bytes.
        bytes: &'a [u8],
    },
    /// A tensor.
    Dense {
        /// Type of the elements.
        dtype: HostDType,
        /// Shape.
        shape: Vec<i64>,
        /// The elements, row-major.
        bytes: &'a [u8],
    },
    /// Attributes of any kinds.
    Aggregate(Vec<TypedAttr<'a>>),
    /// The name of a function.
    Func(&'a str),
}

impl<'a> TypedAttr<'a> {
    /// Returns the number.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attribute is not a number of this type.
    pub fn number<T: AttrNumber>(&self) -> Result<T> {
        match self {
            TypedAttr::Number { dtype, bytes } if *dtype == T::DTYPE => {
                T::from_bytes(bytes).ok_or_else(|| malformed("number"))
            }
            other => Err(invalid_argument!(
                "attribute {other:?} is not a number of the right type"
            )),
        }
    }

    /// Returns the text.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attribute is not a string.
    pub fn string(&self) -> Result<&'a str> {
        match self {
            TypedAttr::String(bytes) => std::str::from_utf8(bytes).map_err(|_| malformed("string")),
            other => Err(invalid_argument!("attribute {other:?} is not a string")),
        }
    }

    /// Returns the elements of a list; an array without elements counts as one.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the attribute is not a list.
    pub fn elements(&self) -> Result<&[TypedAttr<'a>]> {
        match self {
            TypedAttr::Aggregate(elements) => Ok(elements),
            TypedAttr::Array { count: 0, .. } => Ok(&[]),
            other => Err(invalid_argument!("attribute {other:?} is not a list")),
        }
    }
}
