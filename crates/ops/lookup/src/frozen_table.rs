//! `_FrozenTableFind`: a lookup in a table whose entries are attrs.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::table::{Table, TableKind};
use ferroflow_tensor::Shape;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    // Compiled models have it in the place of LookupTableFindV2.
    Op::new(
        "_FrozenTableFind",
        "keys: Tin, default_value: Tout -> values: Tout | Tin: type; Tout: type; table_keys: tensor; \
         table_values: tensor; is_static: bool",
    )
    .kernel(find)
    .not_differentiable(),
];

fn find(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (keys, values) = (
        build.attrs.tensor("table_keys")?.get()?,
        build.attrs.tensor("table_values")?.get()?,
    );
    let is_static = build.attrs.bool("is_static")?;
    let kind = match is_static {
        true => TableKind::Static,
        false => TableKind::Mutable,
    };
    let (1, [_, value_shape @ ..]) = (keys.shape().rank(), values.shape().dims()) else {
        return Err(invalid_argument!(
            "the entries of a table must have scalar keys, got keys of shape {}",
            keys.shape()
        ));
    };
    let (key, value) = (build.input(0)?, build.output(0)?);
    let table = Table::new(key, value, Shape::scalar(), value_shape.into(), kind)?;
    match is_static {
        true => table.initialize(&keys, &values)?,
        false => table.insert(&keys, &values)?,
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let values = table.find(ctx.input(0)?, ctx.input(1)?)?;
        ctx.set_output(0, values)
    }))
}
