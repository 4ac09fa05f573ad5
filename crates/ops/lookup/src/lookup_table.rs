//! Lookup tables, and the ops that fill, query and change them (TensorFlow:
//! `core/kernels/lookup_table_op.cc` and `lookup_table_init_op.cc`).

use crate::table_file::{TextFile, read};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::resource::{ContainerInfo, HandleKernel, handle, resource};
use ferroflow_resources::string_handle::named;
use ferroflow_resources::table::{DenseTableOptions, Table, TableKind, full_shape};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
use std::sync::Arc;

/// HashTableV2, MutableHashTableV2, MutableHashTableOfTensorsV2, MutableDenseHashTableV2, their
/// anonymous forms; InitializeTableV2, InitializeTableFromTextFileV2, LookupTableFindV2,
/// LookupTableInsertV2, LookupTableRemoveV2, LookupTableSizeV2, LookupTableExportV2,
/// LookupTableImportV2.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "HashTableV2",
        "-> table_handle: resource | container: string = ''; shared_name: string = ''; \
         use_node_name_sharing: bool = false; key_dtype: type; value_dtype: type | \
         stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| table(b, TableClass::Static))
    .not_differentiable(),
    Op::new(
        "AnonymousHashTable",
        "-> table_handle: resource | key_dtype: type; value_dtype: type | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| table(b, TableClass::Static)),
    Op::new(
        "MutableHashTableV2",
        "-> table_handle: resource | container: string = ''; shared_name: string = ''; \
         use_node_name_sharing: bool = false; key_dtype: type; value_dtype: type | \
         stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| table(b, TableClass::Mutable))
    .not_differentiable(),
    Op::new(
        "AnonymousMutableHashTable",
        "-> table_handle: resource | key_dtype: type; value_dtype: type | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| table(b, TableClass::Mutable)),
    Op::new(
        "MutableHashTableOfTensorsV2",
        "-> table_handle: resource | container: string = ''; shared_name: string = ''; \
         use_node_name_sharing: bool = false; key_dtype: type; value_dtype: type; \
         value_shape: shape = [] | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| table(b, TableClass::OfTensors))
    .not_differentiable(),
    Op::new(
        "AnonymousMutableHashTableOfTensors",
        "-> table_handle: resource | key_dtype: type; value_dtype: type; \
         value_shape: shape = [] | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| table(b, TableClass::OfTensors)),
    Op::new(
        "MutableDenseHashTableV2",
        "empty_key: key_dtype, deleted_key: key_dtype -> table_handle: resource | \
         container: string = ''; shared_name: string = ''; use_node_name_sharing: bool \
         = false; key_dtype: type; value_dtype: type; value_shape: shape = []; \
         initial_num_buckets: int = 131072; max_load_factor: float = 0.8 | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| table(b, TableClass::Dense))
    .not_differentiable(),
    Op::new(
        "AnonymousMutableDenseHashTable",
        "empty_key: key_dtype, deleted_key: key_dtype -> table_handle: resource | \
         key_dtype: type; value_dtype: type; value_shape: shape = []; \
         initial_num_buckets: int = 131072; max_load_factor: float = 0.8 | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| table(b, TableClass::Dense)),
    Op::new(
        "InitializeTableV2",
        "table_handle: resource, keys: Tkey, values: Tval -> | Tkey: type; Tval: type \
         | stateful",
    )
    .kernel(|_| Ok(Box::new(initialize)))
    .not_differentiable(),
    Op::new(
        "InitializeTableFromTextFileV2",
        "table_handle: resource, filename: string -> | key_index: int >= -2; \
         value_index: int >= -2; vocab_size: int >= -1 = -1; delimiter: string = \
         '\\t'; offset: int = 0 | stateful",
    )
    .cost(Cost::Expensive)
    .kernel(initialize_from_file)
    .not_differentiable(),
    Op::new(
        "LookupTableFindV2",
        "table_handle: resource, keys: Tin, default_value: Tout -> values: Tout | Tin: \
         type; Tout: type | stateful",
    )
    .kernel(|_| Ok(Box::new(find)))
    .not_differentiable(),
    Op::new(
        "LookupTableInsertV2",
        "table_handle: resource, keys: Tin, values: Tout -> | Tin: type; Tout: type | \
         stateful",
    )
    .kernel(|_| Ok(Box::new(insert)))
    .not_differentiable(),
    Op::new(
        "LookupTableRemoveV2",
        "table_handle: resource, keys: Tin -> | Tin: type | stateful",
    )
    .kernel(|_| Ok(Box::new(remove))),
    Op::new(
        "LookupTableSizeV2",
        "table_handle: resource -> size: int64 | | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(size)))
    .not_differentiable(),
    Op::new(
        "LookupTableExportV2",
        "table_handle: resource -> keys: Tkeys, values: Tvalues | Tkeys: type; \
         Tvalues: type | stateful",
    )
    .kernel(export),
    Op::new(
        "LookupTableImportV2",
        "table_handle: resource, keys: Tin, values: Tout -> | Tin: type; Tout: type | \
         stateful",
    )
    .kernel(|_| Ok(Box::new(import))),
];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableClass {
    Static,
    Mutable,
    OfTensors,
    Dense,
}

/// Returns whether TensorFlow has a CPU table of this kind for the dtypes.
fn is_supported(kind: TableClass, key: DType, value: DType) -> bool {
    use DType::*;
    match (key, value) {
        (Int32 | Int64 | String, Float | Double | Int32) => true,
        (Int64 | String, Int64) => true,
        (String, Bool) => true,
        (Int64, Bool) => kind == TableClass::Dense,
        (Int32 | String, String) => kind == TableClass::Static,
        (Int64, String) => kind != TableClass::Dense,
        _ => false,
    }
}

/// The kernel of an op that makes a table.
pub(crate) fn table(build: &KernelBuild, kind: TableClass) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let (key, value) = (attrs.dtype("key_dtype")?, attrs.dtype("value_dtype")?);
    if !is_supported(kind, key, value) {
        return Err(build.unsupported(value));
    }
    let place = match attrs.get("shared_name") {
        Some(_) => ContainerInfo::of_node(build)?,
        None => ContainerInfo::anonymous(),
    };
    let value_shape = match kind {
        TableClass::OfTensors | TableClass::Dense => attrs.shape("value_shape")?.clone(),
        _ => PartialShape::scalar(),
    };
    if kind == TableClass::OfTensors && value_shape.rank() != Some(1) {
        let shown = if value_shape.rank().is_none() {
            PartialShape::scalar()
        } else {
            value_shape
        };
        return Err(invalid_argument!(
            "Default value must be a vector, got shape {shown}"
        ));
    }
    let value_shape = full_shape(&value_shape)?;
    if kind == TableClass::Dense {
        return dense(build, place, key, value, value_shape);
    }
    let make = move |_: &KernelCtx| {
        let form = if kind == TableClass::Static {
            TableKind::Static
        } else {
            TableKind::Mutable
        };
        Table::new(key, value, Shape::scalar(), value_shape.clone(), form)
    };
    handle_kernel(build, place, make)
}

/// The kernel that outputs the handle of the table: a resource, or a string in old graphs.
fn handle_kernel(
    build: &KernelBuild,
    place: ContainerInfo,
    make: impl Fn(&KernelCtx) -> Result<Table> + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    let kernel = HandleKernel::new(place, make);
    Ok(match build.output(0)? {
        DType::String => Box::new(kernel.by_reference()),
        _ => Box::new(kernel),
    })
}

fn dense(
    build: &KernelBuild,
    place: ContainerInfo,
    key: DType,
    value: DType,
    value_shape: Shape,
) -> Result<Box<dyn OpKernel>> {
    let n_buckets = build.attrs.int("initial_num_buckets")?;
    let max_load = build.attrs.float("max_load_factor")?;
    let usable = |n: usize| n >= 4 && n.is_power_of_two() && n <= 1 << 40;
    let Some(n_buckets) = usize::try_from(n_buckets).ok().filter(|&n| usable(n)) else {
        return Err(invalid_argument!(
            "Number of buckets must be at least 4 and a power of 2, got: {n_buckets}"
        ));
    };
    if !(max_load > 0.0 && max_load < 1.0) {
        return Err(invalid_argument!(
            "max_load_factor must be between 0 and 1, got: {max_load}"
        ));
    }
    let make = move |ctx: &KernelCtx| {
        let (empty, deleted) = (ctx.input(0)?.clone(), ctx.input(1)?.clone());
        if empty.shape().rank() > 1 {
            return Err(invalid_argument!(
                "Empty key must be a scalar or a vector, got shape {}",
                empty.shape()
            ));
        }
        let key_shape = empty.shape().clone();
        let form = TableKind::Dense(DenseTableOptions {
            empty,
            deleted,
            n_buckets,
            max_load,
        });
        Table::new(key, value, key_shape, value_shape.clone(), form)
    };
    handle_kernel(build, place, make)
}

/// The table in input 0, by resource or by string.
fn table_in(ctx: &KernelCtx) -> Result<Arc<Table>> {
    match by_reference(ctx)? {
        true => named(ctx.input(0)?, "table"),
        false => resource(ctx, 0),
    }
}

fn by_reference(ctx: &KernelCtx) -> Result<bool> {
    Ok(ctx.input(0)?.dtype() == DType::String)
}

/// Returns the table in input 0, whose keys and values must have the dtypes of inputs 1 and 2.
/// `returns_value` decides how the message shows the op's results.
fn table_of(ctx: &KernelCtx, returns_value: bool) -> Result<Arc<Table>> {
    let table = table_in(ctx)?;
    let has_values = ctx.num_inputs() > 2;
    let (key, value) = (ctx.input(1)?.dtype(), table.dtypes().1);
    let got = if has_values {
        ctx.input(2)?.dtype()
    } else {
        value
    };
    if (key, got) == table.dtypes() {
        return Ok(table);
    }
    let handle = match by_reference(ctx)? {
        true => "string_ref",
        false => "resource",
    };
    let signature = |key: DType, value: DType| {
        let values = if has_values {
            format!(", {value}")
        } else {
            String::new()
        };
        let result = if returns_value {
            value.to_string()
        } else {
            String::new()
        };
        format!("{handle}, {key}{values}->{result}")
    };
    Err(invalid_argument!(
        "Signature mismatch, have: {} expected: {}",
        signature(key, got),
        signature(table.dtypes().0, value)
    ))
}

fn pair(ctx: &KernelCtx) -> Result<Arc<Table>> {
    table_of(ctx, false)
}

pub(crate) fn find(ctx: &mut KernelCtx) -> Result<()> {
    let values = table_of(ctx, true)?.find(ctx.input(1)?, ctx.input(2)?)?;
    ctx.set_output(0, values)
}

pub(crate) fn insert(ctx: &mut KernelCtx) -> Result<()> {
    let table = pair(ctx)?;
    table.insert(ctx.input(1)?, ctx.input(2)?)
}

pub(crate) fn import(ctx: &mut KernelCtx) -> Result<()> {
    let table = pair(ctx)?;
    table.import(ctx.input(1)?, ctx.input(2)?)
}

pub(crate) fn size(ctx: &mut KernelCtx) -> Result<()> {
    let size = table_in(ctx)?.size()?;
    ctx.set_output(0, Tensor::scalar(size as i64))
}

fn remove(ctx: &mut KernelCtx) -> Result<()> {
    table_of(ctx, false)?.remove(ctx.input(1)?)
}

/// Returns the table in input 0, which must be a static one.
fn static_table(ctx: &KernelCtx) -> Result<Arc<Table>> {
    let table = table_in(ctx)?;
    if table.is_static() {
        return Ok(table);
    }
    let (container, name) = match by_reference(ctx)? {
        false => {
            let handle = handle(ctx, 0)?;
            (handle.container.to_string(), handle.name.to_string())
        }
        true => {
            let parts = ctx.input(0)?.strings()?.iter();
            let mut parts = parts.map(|s| String::from_utf8_lossy(s).into_owned());
            let mut part = || parts.next().unwrap_or_default();
            (part(), part())
        }
    };
    Err(invalid_argument!(
        "Table {container} {name} is not initializable"
    ))
}

pub(crate) fn initialize(ctx: &mut KernelCtx) -> Result<()> {
    static_table(ctx)?;
    pair(ctx)?.initialize(ctx.input(1)?, ctx.input(2)?)
}

pub(crate) fn initialize_from_file(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let file = TextFile::of(build.attrs)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let table = static_table(ctx)?;
        let name = ctx.input(1)?;
        let [path] = name.strings()? else {
            return Err(invalid_argument!(
                "filename should be a single string, but got {}",
                name.shape()
            ));
        };
        let (key, value) = table.dtypes();
        let (keys, values) = read(&file, &String::from_utf8_lossy(path), key, value)?;
        table.initialize(&keys, &values)
    }))
}

pub(crate) fn export(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let wanted = (build.output(0)?, build.output(1)?);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let table = table_in(ctx)?;
        if table.dtypes() != wanted {
            let (key, value) = table.dtypes();
            return Err(invalid_argument!(
                "Trying to read a table of {key}->{value} as {}->{}",
                wanted.0,
                wanted.1
            ));
        }
        let (keys, values) = table.export()?;
        ctx.set_output(0, keys)?;
        ctx.set_output(1, values)
    }))
}
