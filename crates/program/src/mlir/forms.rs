//! The table of known operations: their types and how they are written.
//!
//! A row is `names : (operand types) -> (result types) = form`. `{a,b}` in a name makes one row of
//! each, whose types and attributes may call it `$T`; a trailing `*` in a name stands for anything.
//! A type with `*` behind it repeats: it is that of the *rest* of the operands or results. `types` are those of
//! the operands of type `any` and of the rest. The form is a
//! sequence of the words that [`Part`] lists. `typed` at the end: attributes are stored with their types.

use super::ir::Type;
use std::collections::HashMap;
use std::sync::OnceLock;

const TABLE: &str = "
tfrt.constant.{i1,i32,i64,f32,f64,ui32,ui64} : () -> ($T) = value:$T attr-dict
tfrt.constant_s.{i32,i64,f32,f64} : () -> ($T) = value:$T attr-dict
tfrt.constant.complex64 : () -> (complex<f32>) = real:f32 , imaginary:f32 attr-dict
tfrt.constant.complex128 : () -> (complex<f64>) = real:f64 , imaginary:f64 attr-dict
tfrt.new.chain : () -> (!tfrt.chain) = attr-dict
tfrt.merge.chains : (any*) -> (!tfrt.chain) = operands attr-dict chain-types
tfrt.{add.i32,mul.i32,add_s.i32,mul_s.i32,minus_s.i32} : (i32, i32) -> (i32) = operands attr-dict
tfrt.{add.i64,mul.i64,add_s.i64,mul_s.i64} : (i64, i64) -> (i64) = operands attr-dict
tfrt.add.{f32,f64} : ($T, $T) -> ($T) = operands attr-dict
tfrt.and.i1 : (i1, i1) -> (i1) = operands attr-dict
tfrt.equal.{i32,i64} : ($T, $T) -> (i1) = operands attr-dict
tfrt.div.{i32,i64} : ($T, $T) -> ($T, $T) = operands attr-dict
tfrt.print.{i1,i32,i64,f32,f64} : ($T, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
tfrt.get_device : (!tfrt.chain) -> (!tfrt.device) = operands attr-dict
tfrt.return : (any*) -> () = operands types
tfrt.call : (any*) -> (any*) = nonstrict callee:@ (rest) attr-dict function-type
tfrt.if : (i1, any*) -> (any*) = operands nonstrict attributes functional region else
tfrt.cond : (i1, any*) -> (any*) = %0 a_true_fn:@ b_false_fn:@ (rest) attr-dict functional
tfrt.case : (i32, !tfrt.chain, any*) -> (!tfrt.chain, any*) = %0 branches:any (rest) attr-dict functional
tfrt.while : (i1, any*) -> (any*) = %0 body_fn:@ (rest) attr-dict parallel_iterations ( parallel_iterations:i64 ) functional
tfrt.once : (any*) -> (any*) = function:@ (rest) attr-dict functional
tfrt.repeat.i32 : (i32, any*) -> (any*) = operands nonstrict attributes same-types region
tfrt.parallel_for.i32 : (i32, i32, i32, any*) -> (!tfrt.chain) = %0 to %1 fixed %2 ,rest types region:2
tfrt.parallel_call.i32 : (i32, i32, i32, any*) -> (!tfrt.chain) = %0 to %1 fixed %2 callee:@ (rest) types
tfrt_test.do.async : (any*) -> (any*) = operands attributes functional region
tfrt_test.benchmark : (any*) -> (!tfrt.chain) = name:string (typed) numbers region
tfrt_test.sync_benchmark : (any*) -> () = target_fn:@ (typed) numbers
tfrt_test.test_cost : (any*) -> (i32) = operands attr-dict types typed
tfrt_test.count3.{i32,i64} : ($T) -> ($T, $T, $T) = operands attr-dict
tfrt_test.get_string : () -> (!tfrt.string) = attr-dict
tfrt_test.get_string_sync : () -> (!tfrt.string) = attr-dict
tfrt_test.print_typed_attr : (!tfrt.chain) -> (!tfrt.chain) = operands attr-dict typed
tfrt_dht.create_uninitialized_tensor.* : () -> (!t.tensor) = shape:i64
tfrt_dht.make_tensor.* : (!ht.host_buffer, !ts.shape, !tfrt.chain) -> (!t.tensor, !tfrt.chain) = operands attr-dict
tfrt_dht.fill_tensor_with_constant.* : (!t.tensor, !tfrt.chain) -> (!tfrt.chain) = operands value:any
tfrt_dht.set_tensor_with_constant_values.* : (!t.tensor, !tfrt.chain) -> (!tfrt.chain) = operands values:any
tfrt_dht.print_tensor : (!t.tensor, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
tfrt_dht.tensor_equal.* : (!t.tensor, !t.tensor, !tfrt.chain) -> (i1, !tfrt.chain) = operands attr-dict
tfrt_dht.allocate_buffer : (i64, i64) -> (!ht.host_buffer) = operands attr-dict
tfrt_dht.get_buffer : (!t.tensor, !tfrt.chain) -> (!ht.host_buffer, !tfrt.chain) = operands attr-dict
tfrt_dht.get_buffer_slice : (!ht.host_buffer, i64, i64) -> (!ht.host_buffer) = operands attr-dict
tfrt_dht.print_buffer : (!ht.host_buffer, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
tfrt_dht.get_tensor_shape : (!t.tensor) -> (!ts.shape) = operands attr-dict
tfrt_dht_sync.create_uninitialized_tensor.* : () -> (!t.tensor) = shape:i64 attr-dict
tfrt_dht_sync.print_tensor : (!t.tensor) -> () = operands attr-dict
tfrt_dht_sync.allocate_buffer : (i64, i64) -> (!ht.host_buffer) = operands attr-dict
tfrt_dht_sync.get_tensor_shape : (!t.tensor) -> (!ts.shape) = operands attr-dict
tfrt_dht_sync.set_tensor_with_constant_values.* : (!t.tensor) -> () = %0 values:any attr-dict
tfrt_dht_sync.make_tensor.* : (!ht.host_buffer, !ts.shape) -> (!t.tensor) = operands attr-dict
coo.convert_coo_to_dht.* : (!t.tensor, !tfrt.chain) -> (!t.tensor, !tfrt.chain) = operands attr-dict
coo.convert_dht_to_coo.* : (!t.tensor, !tfrt.chain) -> (!t.tensor, !tfrt.chain) = operands attr-dict
coo.print_tensor : (!t.tensor, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
coo.tensor_equal.* : (!t.tensor, !t.tensor, !tfrt.chain) -> (i1, !tfrt.chain) = operands attr-dict
ts.build_shape : () -> (!ts.shape) = value:i64 attr-dict
ts.equal_shape : (!ts.shape, !ts.shape) -> (i1) = operands attr-dict
ts.get_dimension : (!ts.shape, i32) -> (i64) = operands attr-dict
ts.get_num_elements : (!ts.shape) -> (i64) = operands attr-dict
ts.print_shape : (!ts.shape, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
ts.as_fixed_rank_shape.{0,1,2,3,4,5,6,7} : (!ts.shape) -> (!ts.fixed_rank_shape.$T) = operands attr-dict
ts.print_fixed_rank_shape.{0,1,2,3,4,5,6,7} : (!ts.fixed_rank_shape.$T, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
ts.build_partial_shape : () -> (!ts.partial_shape) = value:i64 attr-dict
ts.build_unranked_partial_shape : () -> (!ts.partial_shape) = attr-dict
ts.print_partial_shape : (!ts.partial_shape, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
ts.to_shape : (!ts.partial_shape) -> (!ts.shape) = operands attr-dict
ts.to_partial_shape : (!ts.shape) -> (!ts.partial_shape) = operands attr-dict
{corert,corert_sync}.create_dense_tensor.* : () -> (!corert.tensorhandle) = attr-dict
{corert,corert_sync}.const_dense_tensor : () -> (!corert.tensorhandle) = value:any attr-dict typed
{corert,corert_sync}.const_string_tensor : () -> (!corert.tensorhandle) = attr-dict typed
corert.executeop : (!corert.ophandler, !corert.tensorhandle*) -> (!corert.tensorhandle*) = execute-op typed
corert.executeop.seq : (!corert.ophandler, !tfrt.chain, !corert.tensorhandle*) -> (!tfrt.chain, !corert.tensorhandle*) = execute-op typed
corert_sync.executeop : (!corert.ophandler, !corert.tensorhandle*) -> (!corert.tensorhandle*) = execute-op typed
corert.get_op_handler : (!tfrt.chain) -> (!corert.ophandler) = %0 op_handler_name:string attr-dict
corert.register_op_handler : (!corert.ophandler) -> (!tfrt.chain) = %0 op_handler_name:string attr-dict
corert_sync.get_op_handler : () -> (!corert.ophandler) = device_name:string attr-dict
corert.cond : (!corert.tensorhandle, !tfrt.chain, any*) -> (!tfrt.chain, any*) = %0 a_true_fn:@ b_false_fn:@ (rest) attr-dict handles
corert.while : (!tfrt.chain, any*) -> (!tfrt.chain, any*) = a_cond_fn:@ b_body_fn:@ (rest) attr-dict handles
corert.tensorhandle_to_int32 : (!corert.tensorhandle) -> (i32) = operands attr-dict
corert.get_dst_tensor_type : (!corert.tensorhandle, !tfrt.device) -> (!tfrt.tensor_type) = operands attr-dict
tfrt_gpu.device.get : (i32) -> (!tfrt_gpu.device) = platform:word , %0 attr-dict
tfrt_gpu.context.{primary,create} : (!tfrt_gpu.device) -> (!tfrt_gpu.context) = operands attr-dict
tfrt_gpu.stream.create : (!tfrt_gpu.context) -> (!tfrt_gpu.stream) = operands attr-dict
tfrt_gpu.stream.get_context : (!tfrt_gpu.stream) -> (!tfrt_gpu.context) = operands attr-dict
tfrt_gpu.stream.wait : (!tfrt_gpu.stream, !tfrt_gpu.event, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
tfrt_gpu.stream.synchronize : (!tfrt_gpu.stream, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
tfrt_gpu.event.create : (!tfrt_gpu.context) -> (!tfrt_gpu.event) = operands attr-dict
tfrt_gpu.event.record : (!tfrt_gpu.event, !tfrt_gpu.stream, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
tfrt_gpu.event.synchronize : (!tfrt_gpu.event, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
tfrt_gpu.allocator.create : (!tfrt_gpu.context) -> (!tfrt_gpu.allocator) = operands attr-dict
tfrt_gpu.mem.allocate : (!tfrt_gpu.allocator, !tfrt_gpu.stream, i64, !tfrt.chain) -> (!tfrt_gpu.buffer) = operands attr-dict
tfrt_gpu.mem.allocate_host : (!tfrt_gpu.context, i64, !tfrt.chain) -> (!tfrt_gpu.buffer) = operands attr-dict
tfrt_gpu.mem.deallocate : (!tfrt_gpu.buffer, !tfrt_gpu.stream, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
tfrt_gpu.mem.copy : (any, any, !tfrt_gpu.stream, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict types
tfrt_gpu.mem.set : (!tfrt_gpu.buffer, any, !tfrt_gpu.stream, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict types
tfrt_gpu.mem.view : (!tfrt_gpu.buffer, ui64, ui64) -> (!tfrt_gpu.buffer) = operands attr-dict
tfrt_gpu.mem.print_metadata : (!tfrt_gpu.buffer, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
tfrt_gpu.tensor.make.{i8,i32,i64,f32,f64} : (!tfrt_gpu.buffer, !ts.shape, !tfrt.chain) -> (!t.tensor) = operands attr-dict
tfrt_gpu.tensor.print_metadata : (!t.tensor, !tfrt.chain) -> (!tfrt.chain) = operands attr-dict
tfrt_gpu.module.load : (!tfrt_gpu.context) -> (!tfrt_gpu.module) = operands attr-dict
tfrt_gpu.module.get_global : (!tfrt_gpu.module) -> (!tfrt_gpu.buffer) = operands attr-dict
tfrt_gpu.module.get_function : (!tfrt_gpu.module) -> (!tfrt_gpu.function) = operands attr-dict
tfrt_gpu.function.launch : (!tfrt_gpu.stream, !tfrt_gpu.function, ui64, ui64, ui64, ui64, ui64, ui64, ui32, !tfrt.chain, any*) -> (!tfrt.chain) = %0 , %1 , blocks in ( %2 , %3 , %4 ) , threads in ( %5 , %6 , %7 ) , %8 , %9 args attr-dict
corert.transfer : (!corert.tensorhandle, !tfrt.device, !tfrt.tensor_type) -> (!corert.tensorhandle) = operands attr-dict
";

/// A part of a form.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    /// `operands`: all, with commas.
    Operands,
    /// `%N`: one operand.
    Operand,
    /// `(rest)`: those that are not written yet, in parentheses.
    Parenthesized,
    /// `,rest`: those that are not written yet, behind a comma; nothing if all are.
    CommaRest,
    /// `(typed)`: all in parentheses, each with its type.
    TypedOperands,
    /// `attr-dict`: the attributes that the form does not mention.
    AttrDict,
    /// `attributes`: the same behind that keyword.
    KeywordAttrDict,
    /// `numbers`: the same without braces; all are of type `i32`.
    Numbers,
    /// `NAME:TYPE`: an attribute of that type, so that the type is not written; `any` writes it.
    Attr { name: String, ty: Option<Type> },
    /// `NAME:word`: a string attribute, written as a bare word.
    Word(String),
    /// `args`: the rest of the operands and their types behind `, args`; nothing if there are none.
    Args,
    /// `NAME:@`: a symbol.
    Symbol(String),
    /// `nonstrict`: the operation is not strict; nothing is written.
    NonStrict,
    /// `types`: the types of the operands of type `any` and of the rest, if any.
    Types,
    /// `same-types`: these are the types of the results, too.
    SameTypes,
    /// `chain-types`: the same; nothing if all are chains.
    ChainTypes,
    /// `functional`: the types of the rest of the operands and results.
    Functional,
    /// `function-type`: the same as a function type.
    FunctionType,
    /// `handles`: the same; those of operands are left out if all are handles.
    Handles,
    /// `region:N`: arguments have the names of the first `N` operands and of the rest.
    Region(usize),
    /// `else`: a region behind that keyword, which may be left out if there are no results.
    Else,
    /// `execute-op`: all of `corert.executeop`.
    ExecuteOp,
    /// `(`, `)`, `,` and keywords.
    Literal(String),
}

/// A list of types of which the last may repeat.
#[derive(Clone, Debug, Default)]
pub(super) struct Signature {
    pub(super) fixed: Vec<Type>,
    pub(super) repeats: Option<Type>,
}

impl Signature {
    /// The type that position `i` must have; `None` if any type will do.
    pub(super) fn at(&self, i: usize) -> Option<&Type> {
        let ty = self.fixed.get(i).or(self.repeats.as_ref())?;
        (!ty.is("any")).then_some(ty)
    }
}

/// A row of the table.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) operands: Signature,
    pub(super) results: Signature,
    pub(super) form: Vec<Part>,
    pub(super) typed: bool,
}

impl Spec {
    /// The number of regions of the operation.
    pub(super) fn n_regions(&self) -> usize {
        let is_region = |part: &&Part| matches!(part, Part::Region(_) | Part::Else);
        self.form.iter().filter(is_region).count()
    }

    /// Whether the form mentions this attribute.
    pub(super) fn has_attr(&self, attr: &str) -> bool {
        self.form.iter().any(|part| match part {
            Part::Attr { name, .. } | Part::Symbol(name) | Part::Word(name) => name == attr,
            Part::NonStrict => attr == NON_STRICT,
            _ => false,
        })
    }
}

/// The attribute of operations that run as soon as one operand is available.
pub(super) const NON_STRICT: &str = "bef.nonstrict";

struct Specs {
    exact: HashMap<String, Spec>,
    prefixes: Vec<(String, Spec)>,
}

fn signature(text: &str) -> Signature {
    let mut signature = Signature::default();
    let inner = text.trim().trim_start_matches('(').trim_end_matches(')');
    for ty in inner.split(',').map(str::trim).filter(|t| !t.is_empty()) {
        match ty.strip_suffix('*') {
            Some(ty) => signature.repeats = Some(Type::new(ty)),
            None => signature.fixed.push(Type::new(ty)),
        }
    }
    signature
}

fn part(word: &str) -> Part {
    match word {
        "operands" => Part::Operands,
        "(rest)" => Part::Parenthesized,
        ",rest" => Part::CommaRest,
        "(typed)" => Part::TypedOperands,
        "attr-dict" => Part::AttrDict,
        "attributes" => Part::KeywordAttrDict,
        "numbers" => Part::Numbers,
        "nonstrict" => Part::NonStrict,
        "types" => Part::Types,
        "same-types" => Part::SameTypes,
        "chain-types" => Part::ChainTypes,
        "functional" => Part::Functional,
        "function-type" => Part::FunctionType,
        "handles" => Part::Handles,
        "region" => Part::Region(0),
        "else" => Part::Else,
        "args" => Part::Args,
        "execute-op" => Part::ExecuteOp,
        word if word.starts_with('%') => Part::Operand,
        _ => match word.split_once(':') {
            Some(("region", n)) => Part::Region(n.parse().unwrap_or(0)),
            Some((name, "word")) => Part::Word(name.to_string()),
            Some((name, "@")) => Part::Symbol(name.to_string()),
            Some((name, ty)) => Part::Attr {
                name: name.to_string(),
                ty: (ty != "any").then(|| Type::new(ty)),
            },
            None => Part::Literal(word.to_string()),
        },
    }
}

fn parse_row(row: &str) -> Option<Vec<(String, Spec)>> {
    let (names, rest) = row.split_once(" : ")?;
    let (types, form) = rest.split_once(" = ")?;
    let (alternatives, before, after) = match names.split_once('{') {
        Some((before, tail)) => {
            let (inner, after) = tail.split_once('}')?;
            (inner.split(',').collect(), before, after)
        }
        None => (vec![""], names, ""),
    };
    let rows = alternatives.into_iter().map(|alternative| {
        let types = types.replace("$T", alternative);
        let form = form.replace("$T", alternative);
        let (operands, results) = types.split_once("->").unwrap_or((&types, ""));
        let typed = form.ends_with(" typed");
        let form = form.trim_end_matches(" typed");
        let spec = Spec {
            operands: signature(operands),
            results: signature(results),
            form: form.split_whitespace().map(part).collect(),
            typed,
        };
        (format!("{before}{alternative}{after}"), spec)
    });
    Some(rows.collect())
}

fn specs() -> &'static Specs {
    static SPECS: OnceLock<Specs> = OnceLock::new();
    SPECS.get_or_init(|| {
        let mut specs = Specs {
            exact: HashMap::new(),
            prefixes: Vec::new(),
        };
        for (name, spec) in TABLE.lines().filter_map(parse_row).flatten() {
            match name.strip_suffix('*') {
                Some(prefix) => specs.prefixes.push((prefix.to_string(), spec)),
                None => drop(specs.exact.insert(name, spec)),
            }
        }
        specs
    })
}

/// The row of an operation.
pub(super) fn spec(name: &str) -> Option<&'static Spec> {
    let specs = specs();
    specs.exact.get(name).or_else(|| {
        let row = specs
            .prefixes
            .iter()
            .find(|(p, _)| name.starts_with(p.as_str()));
        row.map(|(_, spec)| spec)
    })
}

/// Whether the attributes of operation `name` are stored with their types.
pub fn has_typed_attributes(name: &str) -> bool {
    name == "corert.execute_crt_op" || spec(name).is_some_and(|s| s.typed)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_row_of_the_table_is_understood() {
        for row in super::TABLE.lines().filter(|l| !l.is_empty()) {
            assert!(
                super::parse_row(row).is_some_and(|r| !r.is_empty()),
                "{row}"
            );
        }
        assert!(super::spec("tfrt.add.f64").is_some_and(|s| s.operands.at(1).is_some()));
        assert!(super::spec("tfrt_dht.create_uninitialized_tensor.i32.2").is_some());
        assert!(super::spec("tfrt.add").is_none());
    }
}
