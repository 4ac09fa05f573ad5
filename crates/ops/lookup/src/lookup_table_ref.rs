//! Lookup tables by reference: the ops of `lookup_table.rs` as old graphs have them.

use crate::lookup_table::{
    TableClass, export, find, import, initialize, initialize_from_file, insert, size, table,
};
use ferroflow_base::invalid_argument;
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, Op};
use ferroflow_resources::string_handle::handle_shape;

/// HashTable, MutableHashTable, MutableHashTableOfTensors, MutableDenseHashTable, InitializeTable,
/// InitializeTableFromTextFile, LookupTableFind, LookupTableInsert, LookupTableSize,
/// LookupTableExport, LookupTableImport.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "HashTable",
        "-> table_handle: Ref(string) | container: string = ''; shared_name: string = ''; \
         use_node_name_sharing: bool = false; key_dtype: type; value_dtype: type | \
         stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| table(b, TableClass::Static))
    .not_differentiable(),
    Op::new(
        "MutableHashTable",
        "-> table_handle: Ref(string) | container: string = ''; shared_name: string = ''; \
         use_node_name_sharing: bool = false; key_dtype: type; value_dtype: type | \
         stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| table(b, TableClass::Mutable))
    .not_differentiable(),
    Op::new(
        "MutableHashTableOfTensors",
        "-> table_handle: Ref(string) | container: string = ''; shared_name: string = ''; \
         use_node_name_sharing: bool = false; key_dtype: type; value_dtype: type; \
         value_shape: shape = [] | stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| table(b, TableClass::OfTensors))
    .not_differentiable(),
    // Without an input for the key of removed entries, TensorFlow cannot make the table either.
    Op::new(
        "MutableDenseHashTable",
        "empty_key: key_dtype -> table_handle: Ref(string) | container: string = ''; \
         shared_name: string = ''; use_node_name_sharing: bool = false; key_dtype: type; \
         value_dtype: type; value_shape: shape = []; initial_num_buckets: int = 131072; \
         max_load_factor: float = 0.8 | stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| {
        table(b, TableClass::Dense)?;
        Ok(Box::new(|_: &mut ferroflow_opdef::KernelCtx| {
            Err(invalid_argument!("Unknown input name: deleted_key"))
        }))
    })
    .not_differentiable(),
    Op::new(
        "InitializeTable",
        "table_handle: Ref(string), keys: Tkey, values: Tval -> | Tkey: type; Tval: type",
    )
    .kernel(|_| Ok(Box::new(initialize)))
    .not_differentiable(),
    Op::new(
        "InitializeTableFromTextFile",
        "table_handle: Ref(string), filename: string -> | key_index: int >= -2; \
         value_index: int >= -2; vocab_size: int >= -1 = -1; delimiter: string = '\\t'; \
         offset: int = 0",
    )
    .cost(Cost::Expensive)
    .kernel(initialize_from_file)
    .not_differentiable(),
    Op::new(
        "LookupTableFind",
        "table_handle: Ref(string), keys: Tin, default_value: Tout -> values: Tout | Tin: \
         type; Tout: type",
    )
    .kernel(|_| Ok(Box::new(find)))
    .not_differentiable(),
    Op::new(
        "LookupTableInsert",
        "table_handle: Ref(string), keys: Tin, values: Tout -> | Tin: type; Tout: type",
    )
    .kernel(|_| Ok(Box::new(insert)))
    .not_differentiable(),
    Op::new(
        "LookupTableSize",
        "table_handle: Ref(string) -> size: int64",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(size)))
    .not_differentiable(),
    Op::new(
        "LookupTableExport",
        "table_handle: Ref(string) -> keys: Tkeys, values: Tvalues | Tkeys: type; \
         Tvalues: type",
    )
    .kernel(export),
    Op::new(
        "LookupTableImport",
        "table_handle: Ref(string), keys: Tin, values: Tout -> | Tin: type; Tout: type",
    )
    .kernel(|_| Ok(Box::new(import))),
];
