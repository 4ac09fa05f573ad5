//! [`OpDef`]: the schema of an op.

use crate::{AttrValue, Attrs, Name, NodeClass};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_tensor::DType;
use smallvec::SmallVec;

/// The dtype of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgType {
    /// Always this dtype.
    Fixed(DType),
    /// The value of a type attr.
    Attr(Name),
}

/// One input or output argument; it may stand for several tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgDef {
    /// One tensor.
    Single {
        /// Argument name.
        name: Name,
        /// Its dtype.
        ty: ArgType,
        /// Whether it is a reference to a variable's buffer.
        is_ref: bool,
    },
    /// Several tensors of one dtype; the int attr `number` has their number.
    Repeated {
        /// Argument name.
        name: Name,
        /// The int attr.
        number: Name,
        /// Their dtype.
        ty: ArgType,
        /// Whether they are references.
        is_ref: bool,
    },
    /// One tensor per dtype of the `list(type)` attr.
    List {
        /// Argument name.
        name: Name,
        /// The attr.
        types: Name,
    },
}

impl ArgDef {
    /// Argument name.
    pub fn name(&self) -> &str {
        match self {
            ArgDef::Single { name, .. }
            | ArgDef::Repeated { name, .. }
            | ArgDef::List { name, .. } => name,
        }
    }

    /// Returns whether the argument is a reference.
    pub fn is_ref(&self) -> bool {
        matches!(
            self,
            ArgDef::Single { is_ref: true, .. } | ArgDef::Repeated { is_ref: true, .. }
        )
    }

    /// Returns the dtypes of the tensors it stands for in a node with these attrs.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an attr that decides them is missing, of another kind, or not a valid
    /// count.
    pub fn dtypes(&self, attrs: &Attrs) -> Result<SmallVec<[DType; 4]>> {
        let resolve = |ty: &ArgType| match ty {
            ArgType::Fixed(t) => Ok(*t),
            ArgType::Attr(a) => attrs.dtype(a),
        };
        match self {
            ArgDef::Single { ty, .. } => Ok(SmallVec::from_slice(&[resolve(ty)?])),
            ArgDef::Repeated { number, ty, .. } => {
                let n = attrs.int(number)?;
                let n = usize::try_from(n)
                    .ok()
                    .filter(|&n| n <= 1 << 24)
                    .ok_or_else(|| {
                        invalid_argument!(
                            "attr '{number}' is {n}, which is not a valid tensor count"
                        )
                    })?;
                Ok(SmallVec::from_elem(resolve(ty)?, n))
            }
            ArgDef::List { types, .. } => Ok(attrs.dtypes(types)?.into()),
        }
    }
}

/// The kind of an attr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "TensorFlow's kinds")]
pub enum AttrType {
    Str,
    Int,
    Float,
    Bool,
    Type,
    Shape,
    Tensor,
    Func,
}

impl AttrType {
    /// All kinds.
    pub const ALL: [AttrType; 8] = [
        AttrType::Str,
        AttrType::Int,
        AttrType::Float,
        AttrType::Bool,
        AttrType::Type,
        AttrType::Shape,
        AttrType::Tensor,
        AttrType::Func,
    ];

    /// Returns the name of the kind in an `OpDef`.
    pub fn name(self) -> &'static str {
        match self {
            AttrType::Str => "string",
            AttrType::Int => "int",
            AttrType::Float => "float",
            AttrType::Bool => "bool",
            AttrType::Type => "type",
            AttrType::Shape => "shape",
            AttrType::Tensor => "tensor",
            AttrType::Func => "func",
        }
    }
}

/// An attr of an op: kind, default, constraints.
#[derive(Clone, Debug)]
pub struct AttrDef {
    /// Attr name.
    pub name: Name,
    /// Kind of the value, or of the list's elements.
    pub ty: AttrType,
    /// Whether it is a list.
    pub is_list: bool,
    /// Least value of an int, or least length of a list.
    pub minimum: Option<i64>,
    /// Allowed dtypes or strings; empty if all are.
    pub allowed: Vec<AttrValue>,
    /// The value of nodes that do not set the attr.
    pub default: Option<AttrValue>,
}

impl AttrDef {
    /// Checks kind and constraints of `value`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the kind differs or a constraint is violated.
    pub fn check(&self, value: &AttrValue) -> Result<()> {
        if let AttrValue::Placeholder(_) = value {
            return Ok(());
        }
        if !self.is_list {
            return self.check_one(value);
        }
        let AttrValue::List(items) = value else {
            return Err(self.has_other_type(value));
        };
        if let Some(min) = self.minimum
            && (items.len() as i64) < min
        {
            return Err(invalid_argument!(
                "Length for attr '{}' of {} must be at least minimum {min}",
                self.name,
                items.len()
            ));
        }
        items.iter().try_for_each(|item| self.check_one(item))
    }

    /// The error of a value of another type (`core/framework/attr_value_util.cc`).
    #[cold]
    fn has_other_type(&self, value: &AttrValue) -> Status {
        let wanted = match self.is_list {
            true => format!("list({})", self.ty.name()),
            false => self.ty.name().to_string(),
        };
        let found = match value {
            AttrValue::List(list) => list.first().map(|item| format!("list({})", item.kind())),
            value => Some(value.kind().to_string()),
        };
        let text = match found {
            Some(found) if !self.is_list || found.starts_with("list") => {
                format!("had value with type '{found}' when '{wanted}' expected")
            }
            _ => format!("missing value with expected type '{wanted}'"),
        };
        invalid_argument!("AttrValue {text}\n\t for attr '{}'", self.name)
    }

    fn check_one(&self, value: &AttrValue) -> Result<()> {
        let right_kind = matches!(
            (self.ty, value),
            (AttrType::Str, AttrValue::Str(_))
                | (AttrType::Int, AttrValue::Int(_))
                | (AttrType::Float, AttrValue::Float(_))
                | (AttrType::Bool, AttrValue::Bool(_))
                | (AttrType::Type, AttrValue::Type(_))
                | (AttrType::Shape, AttrValue::Shape(_))
                | (AttrType::Tensor, AttrValue::Tensor(_))
                | (AttrType::Func, AttrValue::Func(_))
        );
        if !right_kind {
            return Err(self.has_other_type(value));
        }
        if !self.allowed.is_empty() && !self.allowed.iter().any(|a| a.same_value(value)) {
            let allowed: Vec<String> = self
                .allowed
                .iter()
                .map(|a| match a {
                    AttrValue::Str(s) => format!("'{}'", String::from_utf8_lossy(s)),
                    AttrValue::Type(t) => t.to_string(),
                    other => format!("{other:?}"),
                })
                .collect();
            let given = match value {
                AttrValue::Str(s) => format!("'{}'", String::from_utf8_lossy(s)),
                AttrValue::Type(t) => t.to_string(),
                other => format!("{other:?}"),
            };
            return Err(invalid_argument!(
                "Value for attr '{}' of {given} is not in the list of allowed values: {}",
                self.name,
                allowed.join(", ")
            ));
        }
        if let (AttrValue::Int(i), Some(min), false) = (value, self.minimum, self.is_list)
            && *i < min
        {
            return Err(invalid_argument!(
                "Value for attr '{}' of {i} must be at least minimum {min}",
                self.name
            ));
        }
        Ok(())
    }
}

/// Properties of an op that matter to passes and engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpFlags {
    /// Has state or effects: never folded or merged, nor removed if a target needs it.
    pub stateful: bool,
    /// Inputs may be swapped.
    pub commutative: bool,
    /// Inputs may be regrouped.
    pub aggregate: bool,
    /// Accepts a reference to an uninitialised variable.
    pub allows_uninitialized_input: bool,
    /// May talk to other processes.
    pub distributed: bool,
}

/// The schema of an op or of a function.
#[derive(Clone, Debug)]
pub struct OpDef {
    /// Op type name.
    pub name: Name,
    /// Inputs in order.
    pub inputs: Vec<ArgDef>,
    /// Outputs in order.
    pub outputs: Vec<ArgDef>,
    /// Attrs in order of declaration.
    pub attrs: Vec<AttrDef>,
    /// Flags.
    pub flags: OpFlags,
    pub(crate) class: NodeClass,
}

impl OpDef {
    /// Returns an empty schema for an op that is not registered.
    pub fn unknown(name: &str) -> OpDef {
        OpDef {
            name: Name::Owned(name.to_string()),
            inputs: Vec::new(),
            outputs: Vec::new(),
            attrs: Vec::new(),
            flags: OpFlags::default(),
            class: NodeClass::of(name),
        }
    }

    /// Returns the op's class.
    #[inline]
    pub fn class(&self) -> NodeClass {
        self.class
    }

    /// Returns whether nodes only return their inputs unchanged.
    pub fn is_identity(&self) -> bool {
        self.class == NodeClass::Identity
    }

    /// Returns the attr named `name`.
    pub fn attr(&self, name: &str) -> Option<&AttrDef> {
        self.attrs.iter().find(|a| a.name == name)
    }

    /// Sets the attrs that have a default and are missing.
    pub fn add_defaults(&self, attrs: &mut Attrs) {
        for def in &self.attrs {
            if let (None, Some(default)) = (attrs.get(&def.name), &def.default) {
                attrs.set(def.name.clone(), default.clone());
            }
        }
    }

    /// Fills in defaults and checks kinds and constraints of the declared attrs; attrs that the op
    /// does not declare are kept (TensorFlow uses `_`-prefixed ones freely).
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an attr without default is missing or a value violates its declaration.
    pub fn complete_attrs(&self, attrs: &mut Attrs) -> Result<()> {
        for def in &self.attrs {
            match attrs.get(&def.name) {
                Some(value) => def.check(value)?,
                None => match &def.default {
                    Some(default) => attrs.set(def.name.clone(), default.clone()),
                    None => {
                        let name = &def.name;
                        return Err(invalid_argument!(
                            "NodeDef missing attr '{name}' from {self}"
                        ));
                    }
                },
            }
        }
        Ok(())
    }

    /// Returns the dtypes of all inputs of a node with these attrs.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an attr that decides them is missing or not valid.
    pub fn input_dtypes(&self, attrs: &Attrs) -> Result<SmallVec<[DType; 4]>> {
        flat_dtypes(&self.inputs, attrs)
    }

    /// Returns the dtypes of all outputs of a node with these attrs.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an attr that decides them is missing or not valid.
    pub fn output_dtypes(&self, attrs: &Attrs) -> Result<SmallVec<[DType; 4]>> {
        flat_dtypes(&self.outputs, attrs)
    }

    /// Returns, for each input of a node with these attrs, whether it is a reference; empty if none
    /// is.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an attr that decides the number of inputs is missing or not valid.
    pub fn input_references(&self, attrs: &Attrs) -> Result<Vec<bool>> {
        flat_references(&self.inputs, attrs)
    }

    /// Returns, for each output of a node with these attrs, whether it is a reference; empty if
    /// none is.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an attr that decides the number of outputs is missing or not valid.
    pub fn output_references(&self, attrs: &Attrs) -> Result<Vec<bool>> {
        flat_references(&self.outputs, attrs)
    }
}

fn flat_references(args: &[ArgDef], attrs: &Attrs) -> Result<Vec<bool>> {
    let mut out = Vec::new();
    if args.iter().any(ArgDef::is_ref) {
        for arg in args {
            out.resize(out.len() + arg.dtypes(attrs)?.len(), arg.is_ref());
        }
    }
    Ok(out)
}

fn flat_dtypes(args: &[ArgDef], attrs: &Attrs) -> Result<SmallVec<[DType; 4]>> {
    let mut out = SmallVec::new();
    for arg in args {
        out.extend(arg.dtypes(attrs)?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the input and output dtypes of a node with these attrs, or the error.
    fn check(signature: &'static str, attrs: &[(&'static str, AttrValue)], expect: &str) {
        let def = OpDef::parse("Op", signature).expect(signature);
        let mut attrs: Attrs = attrs
            .iter()
            .map(|(name, value)| ((*name).into(), value.clone()))
            .collect();
        let completed = def.complete_attrs(&mut attrs);
        let dtypes = completed.and_then(|()| {
            let names = |dtypes: SmallVec<[DType; 4]>| {
                let names: Vec<_> = dtypes.iter().map(|t| t.name()).collect();
                names.join(", ")
            };
            let inputs = names(def.input_dtypes(&attrs)?);
            Ok(format!("{inputs} -> {}", names(def.output_dtypes(&attrs)?)))
        });
        let got = dtypes.unwrap_or_else(|e| e.message().to_string());
        assert_eq!(got, expect, "{signature}");
    }

    #[test]
    fn dtypes() {
        let float = || ("T", DType::Float.into());
        check("x: T -> y: T | T: type", &[float()], "float -> float");
        check("x: T -> y: int32 | T: type = float", &[], "float -> int32");
        check(
            "x: N*T, i: int32 -> y: T | N: int >= 1; T: type",
            &[float(), ("N", 2i64.into())],
            "float, float, int32 -> float",
        );
        let list = AttrValue::List(vec![DType::Float.into(), DType::Bool.into()]);
        check(
            "x: list(Tin) -> | Tin: list(type)",
            &[("Tin", list)],
            "float, bool -> ",
        );
        check(
            "x: Ref(T) -> y: Ref(T) | T: type",
            &[float()],
            "float -> float",
        );
    }

    #[test]
    fn errors() {
        check(
            "x: T -> y: T | T: type",
            &[],
            "NodeDef missing attr 'T' from Op<name=Op; signature=x:T -> y:T; attr=T:type>",
        );
        check(
            "x: T -> | T: type {int32,int64}",
            &[("T", DType::Float.into())],
            "Value for attr 'T' of float is not in the list of allowed values: int32, int64",
        );
        check(
            "x: N*T -> | N: int >= 1; T: type = float",
            &[("N", 0i64.into())],
            "Value for attr 'N' of 0 must be at least minimum 1",
        );
        check(
            "x: T -> | T: type",
            &[("T", true.into())],
            "AttrValue had value with type 'bool' when 'type' expected\n\t for attr 'T'",
        );
    }

    #[test]
    fn references() {
        let def = OpDef::parse("Op", "a: Ref(T), b: T -> c: Ref(T) | T: type = float");
        let (def, mut attrs) = (def.expect("valid"), Attrs::default());
        def.complete_attrs(&mut attrs).expect("complete");
        assert_eq!(def.input_references(&attrs).expect("known"), [true, false]);
        assert_eq!(def.output_references(&attrs).expect("known"), [true]);
    }
}
