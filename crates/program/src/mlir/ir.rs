//! The IR of host programs: operations with operands, results, attributes and regions.

use std::fmt;
use std::sync::Arc;

/// A position in a source file.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Loc {
    /// Name of the file.
    pub file: Arc<str>,
    /// Line, from 1; 0 if unknown.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// The name of the location, if any.
    pub name: Option<Arc<str>>,
}

/// A type. Types are equal when their canonical texts are.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Type {
    /// Any type that is not a function's, as its text: `i32`, `!tfrt.chain`, `tensor<2x?xf32>`.
    Text(Arc<str>),
    /// A function's type.
    Function(Arc<FunctionType>),
}

/// Argument and result types of a function.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct FunctionType {
    /// Types of the arguments.
    pub inputs: Vec<Type>,
    /// Types of the results.
    pub results: Vec<Type>,
}

impl Type {
    /// The type with this canonical text.
    pub fn new(text: &str) -> Type {
        Type::Text(text.into())
    }

    /// The text of a type that is not a function's.
    pub fn text(&self) -> Option<&str> {
        match self {
            Type::Text(text) => Some(text),
            Type::Function(_) => None,
        }
    }

    /// Whether this is the type with that text.
    pub fn is(&self, text: &str) -> bool {
        self.text() == Some(text)
    }

    /// The width and signedness of an integer type: `(width, is_unsigned)`.
    pub fn as_integer(&self) -> Option<(u32, bool)> {
        let text = self.text()?;
        let (digits, unsigned) = match text.strip_prefix("ui") {
            Some(digits) => (digits, true),
            None => (
                text.strip_prefix("si").or_else(|| text.strip_prefix('i'))?,
                false,
            ),
        };
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| Some((digits.parse().ok()?, unsigned)))?
    }

    /// The dialect of a type that is not MLIR's own.
    pub fn dialect(&self) -> Option<&str> {
        let name = self.text()?.strip_prefix('!')?;
        name.split('.').next()
    }

    /// The type of the parts of complex numbers.
    pub fn of_complex(&self) -> Option<Type> {
        let inner = self.text()?.strip_prefix("complex<")?.strip_suffix('>')?;
        Some(Type::new(inner))
    }

    /// Whether this is a type of floating-point numbers.
    pub fn is_float(&self) -> bool {
        matches!(self.text(), Some("bf16" | "f16" | "f32" | "f64"))
    }

    /// Shape and element type of a ranked tensor; an unknown dimension is -1.
    pub fn as_ranked_tensor(&self) -> Option<(Vec<i64>, Type)> {
        let mut rest = self
            .text()?
            .strip_prefix("tensor<")
            .or_else(|| self.text()?.strip_prefix("vector<"))?
            .strip_suffix('>')?;
        let mut shape = Vec::new();
        while let Some((dim, tail)) = rest.split_once('x') {
            if dim == "?" {
                shape.push(-1);
            } else if let Ok(n) = dim.parse() {
                shape.push(n);
            } else {
                break;
            }
            rest = tail;
        }
        Some((shape, Type::new(rest)))
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Text(text) => f.write_str(text),
            Type::Function(function) => function.fmt(f),
        }
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Writes items with commas between them.
pub(super) fn list<T: fmt::Display>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    items.join(", ")
}

impl fmt::Display for FunctionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}) -> ", list(&self.inputs))?;
        match &self.results[..] {
            [Type::Text(one)] => f.write_str(one),
            results => write!(f, "({})", list(results)),
        }
    }
}

/// The elements of a dense attribute: their bytes, little endian.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Dense {
    /// A ranked tensor of known shape.
    pub ty: Type,
    /// The elements, row by row; one byte for each `i1`. Only one if all are the same.
    bytes: Vec<u8>,
}

impl Dense {
    /// All elements of a tensor, or one that all are the same as.
    pub fn new(ty: Type, mut bytes: Vec<u8>) -> Dense {
        let size = Self::size(&ty);
        let first = bytes.get(..size);
        if first.is_some_and(|first| bytes.chunks(size).all(|item| item == first)) {
            bytes.truncate(size);
        }
        Dense { ty, bytes }
    }

    fn size(ty: &Type) -> usize {
        let element = ty.as_ranked_tensor().map(|(_, element)| element);
        element.as_ref().map_or(1, element_size).max(1)
    }

    /// The number of elements.
    pub fn n_elements(&self) -> usize {
        let shape = self.ty.as_ranked_tensor().map(|(shape, _)| shape);
        let product = |n: usize, d: i64| n.saturating_mul(usize::try_from(d).unwrap_or(0));
        shape.unwrap_or_default().into_iter().fold(1, product)
    }

    /// The elements, or the only one if all are the same.
    pub fn distinct(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.bytes.chunks(Self::size(&self.ty))
    }

    /// The number of bytes of all elements.
    pub fn n_bytes(&self) -> usize {
        self.n_elements().saturating_mul(Self::size(&self.ty))
    }

    /// The bytes of all elements.
    pub fn bytes(&self) -> Vec<u8> {
        match self.distinct().len() {
            1 => self.bytes.repeat(self.n_elements()),
            _ => self.bytes.clone(),
        }
    }
}

/// Bytes of one element of a dense attribute.
pub fn element_size(ty: &Type) -> usize {
    if let Some(inner) = ty.of_complex() {
        return 2 * element_size(&inner);
    }
    match ty.text() {
        Some("f64" | "index") => 8,
        Some("f32") => 4,
        Some("f16" | "bf16") => 2,
        _ => ty.as_integer().map_or(1, |(w, _)| (w as usize).div_ceil(8)),
    }
}

/// A constant.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Attr {
    /// Present or not.
    Unit,
    /// `true` or `false`, of type `i1`.
    Bool(bool),
    /// An integer, as the bits of its two's complement, and its type.
    Int(i64, Type),
    /// A floating-point number, as the bits of its type, and its type.
    Float(u64, Type),
    /// Text, or any bytes.
    String(Vec<u8>),
    /// Text with its type.
    TypedString(Vec<u8>, Type),
    /// A type.
    Type(Type),
    /// Several constants.
    Array(Vec<Attr>),
    /// Named constants.
    Dict(Vec<(String, Attr)>),
    /// A reference to a symbol: `@root::@nested`.
    Symbol(Vec<String>),
    /// The elements of a tensor.
    Dense(Dense),
    /// `#corert.shape<...>`; `None` if unranked, -1 for an unknown dimension.
    Shape(Option<Vec<i64>>),
    /// An attribute of a dialect that we only carry along.
    Opaque(String),
}

impl Attr {
    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Attr::String(bytes) | Attr::TypedString(bytes, _) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The name of a reference that is not nested.
    pub fn as_symbol(&self) -> Option<&str> {
        match self {
            Attr::Symbol(path) => match &path[..] {
                [name] => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    /// A string constant.
    pub fn string(text: &str) -> Attr {
        Attr::String(text.as_bytes().to_vec())
    }

    /// A 32-bit integer.
    pub fn i32(value: i32) -> Attr {
        Attr::Int(value.into(), Type::new("i32"))
    }
}

/// The value of a floating-point number stored as the bits of `ty`.
pub fn float_value(bits: u64, ty: &Type) -> f64 {
    match ty.text() {
        Some("f64") => f64::from_bits(bits),
        Some("f32") => f32::from_bits(bits as u32).into(),
        Some("bf16") => f32::from_bits((bits as u32) << 16).into(),
        _ => half::f16::from_bits(bits as u16).into(),
    }
}

/// The bits of `value` as a number of type `ty`.
pub fn float_bits(value: f64, ty: &Type) -> u64 {
    match ty.text() {
        Some("f64") => value.to_bits(),
        Some("f32") => (value as f32).to_bits().into(),
        Some("bf16") => half::bf16::from_f64(value).to_bits().into(),
        _ => half::f16::from_f64(value).to_bits().into(),
    }
}

/// A value of the program: an index into [`Module::values`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Value(pub(super) usize);

impl Value {
    /// The position in [`Module::values`].
    pub fn index(self) -> usize {
        self.0
    }

    /// Moves the value `by` places back in the list of all.
    pub(crate) fn shift(&mut self, by: usize) {
        self.0 += by;
    }
}

/// The type and location of a value.
#[derive(Clone, Debug)]
pub struct ValueInfo {
    /// Its type.
    pub ty: Type,
    /// The location of its definition.
    pub loc: Loc,
    /// The location as it was written, without `loc(...)` around it, unless it is that of `loc`.
    pub written_loc: Option<Arc<str>>,
}

/// Blocks of operations. Host programs have one block in each region.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// The first block's arguments.
    pub args: Vec<Value>,
    /// Its operations, in order.
    pub ops: Vec<Op>,
    /// The number of blocks; 0 for a declaration's missing body.
    pub n_blocks: usize,
    /// The blocks behind the first.
    pub others: Vec<Block>,
    /// The location of its start.
    pub loc: Loc,
}

/// A block behind the first of its region.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Its arguments.
    pub args: Vec<Value>,
    /// Its operations, in order.
    pub ops: Vec<Op>,
}

impl Region {
    /// The operations of all blocks.
    pub fn all_ops(&self) -> impl Iterator<Item = &Op> {
        let others = self.others.iter().flat_map(|block| &block.ops);
        self.ops.iter().chain(others)
    }
}

/// An operation.
#[derive(Clone, Debug, Default)]
pub struct Op {
    /// Full name, `tfrt.add.i32`.
    pub name: Arc<str>,
    /// The values it reads.
    pub operands: Vec<Value>,
    /// The values it defines.
    pub results: Vec<Value>,
    /// Named constants, in the order of their names.
    pub attrs: Vec<(String, Attr)>,
    /// Nested blocks.
    pub regions: Vec<Region>,
    /// The blocks of its region that may follow it, by their places there.
    pub successors: Vec<usize>,
    /// Its location.
    pub loc: Loc,
    /// The location as it was written, without `loc(...)` around it, unless it is that of `loc`.
    pub written_loc: Option<Arc<str>>,
}

impl Op {
    /// An operation without anything.
    pub fn new(name: &str, loc: &Loc) -> Op {
        Op {
            name: name.into(),
            loc: loc.clone(),
            ..Op::default()
        }
    }

    /// A function without a body.
    pub(crate) fn func(name: &str, inputs: Vec<Type>, results: Vec<Type>) -> Op {
        let ty = FunctionType { inputs, results };
        let mut op = Op::new("func", &Loc::default());
        op.set_attr("sym_name", Attr::string(name));
        op.set_attr("type", Attr::Type(Type::Function(ty.into())));
        op
    }

    /// The constant called `name`.
    pub fn attr(&self, name: &str) -> Option<&Attr> {
        self.attrs.iter().find(|(n, _)| n == name).map(|(_, a)| a)
    }

    /// Sets a constant, keeping the order of names.
    pub fn set_attr(&mut self, name: &str, value: Attr) {
        match self.attrs.binary_search_by(|(n, _)| n.as_str().cmp(name)) {
            Ok(i) => {
                if let Some(slot) = self.attrs.get_mut(i) {
                    slot.1 = value;
                }
            }
            Err(i) => self.attrs.insert(i, (name.to_string(), value)),
        }
    }

    /// Sets several constants; of those with the same name, the last.
    pub fn set_attrs(&mut self, attrs: impl IntoIterator<Item = (String, Attr)>) {
        self.attrs.extend(attrs);
        self.attrs.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        // Later ones stand behind.
        self.attrs.reverse();
        self.attrs.dedup_by(|a, b| a.0 == b.0);
        self.attrs.reverse();
    }

    /// Whether this is a function.
    pub fn is_func(&self) -> bool {
        &*self.name == "func"
    }

    /// Whether this is a nested module.
    pub fn is_module(&self) -> bool {
        &*self.name == "module"
    }

    /// The symbol that this operation defines.
    pub fn symbol(&self) -> Option<&str> {
        self.attr("sym_name")?.as_str()
    }

    /// The type of a function.
    pub fn function_type(&self) -> Option<&FunctionType> {
        match self.attr("type")? {
            Attr::Type(Type::Function(function)) => Some(function),
            _ => None,
        }
    }
}

/// A whole program.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// Operations at the top: functions and nested modules.
    pub ops: Vec<Op>,
    /// All values, defined anywhere.
    pub values: Vec<ValueInfo>,
    /// Name and attributes of the module itself, if it was written down.
    pub attrs: Vec<(String, Attr)>,
}

impl Module {
    /// The type of a value.
    pub fn ty(&self, value: Value) -> Type {
        match self.values.get(value.0) {
            Some(info) => info.ty.clone(),
            None => Type::new("none"),
        }
    }

    /// The types of several values.
    pub fn types(&self, values: &[Value]) -> Vec<Type> {
        values.iter().map(|v| self.ty(*v)).collect()
    }

    /// A new value.
    pub fn add_value(&mut self, ty: Type, loc: Loc) -> Value {
        self.values.push(ValueInfo {
            ty,
            loc,
            written_loc: None,
        });
        Value(self.values.len() - 1)
    }

    /// The function called `name` at the top.
    pub fn function(&self, name: &str) -> Option<&Op> {
        self.ops
            .iter()
            .find(|op| op.is_func() && op.symbol() == Some(name))
    }

    /// The operation that a reference names, from the top, and whether it is in a compiled module.
    pub fn lookup(&self, path: &[String]) -> Option<(&Op, bool)> {
        let (first, rest) = path.split_first()?;
        let mut op = self.ops.iter().find(|op| op.symbol() == Some(first))?;
        let mut compiled = is_compiled(op);
        for name in rest {
            let body = &op.regions.first()?.ops;
            op = body.iter().find(|op| op.symbol() == Some(name))?;
            compiled |= is_compiled(op);
        }
        Some((op, compiled))
    }
}

/// Whether `op` is a module that is kept as text for a compiler at run time.
pub fn is_compiled(op: &Op) -> bool {
    op.is_module() && op.attr("tfrt.compiled").is_some()
}
