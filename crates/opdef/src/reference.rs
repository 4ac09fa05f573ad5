//! Properties of an op for the op reference (`docs/ops.md`, `ferroflow ops`).

use crate::{AttrType, AttrValue, GradientRule, OpDef, RegisteredOp};
use ferroflow_base::Result;

impl RegisteredOp {
    /// Returns the source file, relative to the repository's root.
    pub fn path(&self) -> String {
        format!("crates/ops/{}/src/{}.rs", self.group, self.file)
    }

    /// Returns whether the op has a gradient: `yes`, `not differentiable` or `none`.
    pub fn gradient(&self) -> &'static str {
        match self.op.gradient {
            GradientRule::Function(_) => "yes",
            GradientRule::None => "not differentiable",
            GradientRule::Undefined => "none",
        }
    }

    /// Returns the type attrs in the order of the signature, each with the names of its allowed
    /// dtypes; an empty list allows all.
    ///
    /// ```
    /// use ferroflow_opdef::{Op, RegisteredOp};
    /// static OP: Op = Op::new("Neg", "x: T -> y: T | T: type {float,double}");
    /// let op = RegisteredOp { op: &OP, group: "math", file: "unary" };
    /// assert_eq!(op.dtypes()?, [("T".to_string(), vec!["float", "double"])]);
    /// assert_eq!(op.gradient(), "none");
    /// # Ok::<(), ferroflow_base::Status>(())
    /// ```
    ///
    /// # Errors
    /// INTERNAL if the op's signature does not parse.
    pub fn dtypes(&self) -> Result<Vec<(String, Vec<&'static str>)>> {
        let def = OpDef::parse(self.op.name, self.op.signature)?;
        let types = def.attrs.iter().filter(|a| a.ty == AttrType::Type);
        let names = |allowed: &[AttrValue]| {
            let name = |value: &AttrValue| match value {
                AttrValue::Type(dtype) => Some(dtype.name()),
                _ => None,
            };
            allowed.iter().filter_map(name).collect()
        };
        Ok(types
            .map(|a| (a.name.to_string(), names(&a.allowed)))
            .collect())
    }
}
