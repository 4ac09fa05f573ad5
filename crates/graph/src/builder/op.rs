//! One node: attrs that inputs determine are filled in.

use super::GraphBuilder;
use crate::import::is_valid_name;
use crate::{Node, NodeId, Output};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_opdef::{ArgDef, ArgType, AttrValue, Attrs, Name, OpDef};
use ferroflow_tensor::DType;

/// A node that is being built; see [`GraphBuilder::op`].
pub struct OpBuilder<'b, 'r> {
    builder: &'b mut GraphBuilder<'r>,
    op: String,
    name: Option<String>,
    args: Vec<Vec<Output>>,
    attrs: Attrs,
    controls: Vec<NodeId>,
}

impl<'b, 'r> OpBuilder<'b, 'r> {
    pub(super) fn new(builder: &'b mut GraphBuilder<'r>, op: &str) -> Self {
        OpBuilder {
            builder,
            op: op.to_string(),
            name: None,
            args: Vec::new(),
            attrs: Attrs::default(),
            controls: Vec::new(),
        }
    }

    /// The node's name; the op's by default. A taken one gets a number.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_string());
        self
    }

    /// The next input argument, one tensor.
    #[must_use]
    pub fn input(mut self, value: Output) -> Self {
        self.args.push(vec![value]);
        self
    }

    /// The next input argument, a list of tensors.
    #[must_use]
    pub fn inputs(mut self, values: &[Output]) -> Self {
        self.args.push(values.to_vec());
        self
    }

    /// An attr.
    #[must_use]
    pub fn attr(mut self, name: &str, value: AttrValue) -> Self {
        self.attrs.set(Name::Owned(name.to_string()), value);
        self
    }

    /// A node to wait for.
    #[must_use]
    pub fn control(mut self, node: NodeId) -> Self {
        self.controls.push(node);
        self
    }

    /// Adds the node and returns its first output.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn output(self) -> Result<Output> {
        Ok(Output::new(self.build()?, 0))
    }

    /// Adds the node and returns all its outputs.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn outputs(self) -> Result<Vec<Output>> {
        let builder = self.builder;
        let this = OpBuilder { builder, ..self };
        let (n, id) = this.build_counted()?;
        Ok((0..n).map(|i| Output::new(id, i)).collect())
    }

    /// Adds the node.
    ///
    /// # Errors
    /// NOT_FOUND if the op is not registered; INVALID_ARGUMENT if inputs or attrs do not match its signature or an
    /// input is in another branch or loop.
    pub fn build(self) -> Result<NodeId> {
        self.build_counted().map(|(_, id)| id)
    }

    fn build_counted(mut self) -> Result<(usize, NodeId)> {
        let def = self.builder.def(&self.op)?;
        let name = self.builder.name(self.name.as_deref().unwrap_or(&self.op));
        if !is_valid_name(&name) {
            return Err(invalid_argument!(
                "Node '{name}': Node name contains invalid characters"
            ));
        }
        let at = |e: ferroflow_base::Status| e.at_node(&name, &self.op);
        let home = self.builder.current;
        let mut inputs = smallvec::SmallVec::new();
        for value in self.args.iter().flatten() {
            inputs.push(self.builder.route(*value, home).map_err(at)?);
        }
        infer_attrs(self.builder, &def, &self.args, &mut self.attrs).map_err(at)?;
        if !self.builder.colocated.is_empty() {
            let classes = self.builder.colocated.iter();
            let list = classes.map(|c| AttrValue::str(c)).collect();
            self.attrs.set("_class", AttrValue::List(list));
        }
        def.complete_attrs(&mut self.attrs).map_err(at)?;
        let outputs = def.output_dtypes(&self.attrs).map_err(at)?;
        let mut controls = smallvec::SmallVec::new();
        let waits = self.builder.controls.iter().chain(&self.controls);
        for control in waits.copied().collect::<Vec<_>>() {
            let control = self.builder.route_control(control, home)?;
            if !controls.contains(&control) {
                controls.push(control);
            }
        }
        // The pivot puts a node without inputs into its branch or loop.
        if inputs.is_empty() && controls.is_empty() {
            controls.extend(self.builder.pivot());
        }
        let n = outputs.len();
        let node = Node {
            name,
            def,
            attrs: self.attrs,
            inputs,
            controls,
            device: self.builder.device.clone(),
            outputs,
        };
        let id = self.builder.add_raw(node, home)?;
        Ok((n, id))
    }
}

/// A node's inputs by argument. Attrs hold the number of tensors of a list where a signature has several
/// lists.
pub(crate) fn split_args(
    def: &OpDef,
    inputs: &[Output],
    attrs: &Attrs,
) -> Result<Vec<Vec<Output>>> {
    let is_single = |arg: &ArgDef| matches!(arg, ArgDef::Single { .. });
    let n_lists = def.inputs.iter().filter(|a| !is_single(a)).count();
    let n_single = def.inputs.len() - n_lists;
    let mut args = Vec::with_capacity(def.inputs.len());
    let mut rest = inputs;
    for arg in &def.inputs {
        let n = match (is_single(arg), n_lists) {
            (true, _) => 1,
            (false, 1) => inputs.len().saturating_sub(n_single),
            (false, _) => arg.dtypes(attrs)?.len(),
        };
        let (of_arg, others) = rest.split_at_checked(n).ok_or_else(|| {
            invalid_argument!("op {} needs more than {} inputs", def.name, inputs.len())
        })?;
        args.push(of_arg.to_vec());
        rest = others;
    }
    match rest.is_empty() {
        true => Ok(args),
        false => Err(invalid_argument!(
            "op {} takes fewer than {} inputs",
            def.name,
            inputs.len()
        )),
    }
}

/// Fills in the attrs that the inputs' dtypes and numbers determine.
pub(crate) fn infer_attrs(
    builder: &GraphBuilder,
    def: &OpDef,
    args: &[Vec<Output>],
    attrs: &mut Attrs,
) -> Result<()> {
    if def.inputs.len() != args.len() {
        return Err(invalid_argument!(
            "op {} takes {} input arguments, {} are given",
            def.name,
            def.inputs.len(),
            args.len()
        ));
    }
    for (arg, values) in def.inputs.iter().zip(args) {
        let dtypes: Vec<DType> = values
            .iter()
            .map(|v| builder.dtype(*v))
            .collect::<Result<_>>()?;
        let mut set_type = |ty: &ArgType| {
            if let (ArgType::Attr(attr), Some(dtype)) = (ty, dtypes.first()) {
                attrs.set(attr.clone(), AttrValue::Type(*dtype));
            }
        };
        match arg {
            ArgDef::Single { ty, name, .. } => {
                if values.len() != 1 {
                    return Err(invalid_argument!("argument '{name}' is one tensor"));
                }
                set_type(ty);
            }
            ArgDef::Repeated { ty, number, .. } => {
                set_type(ty);
                attrs.set(number.clone(), AttrValue::Int(values.len() as i64));
            }
            ArgDef::List { types, .. } => {
                let list = dtypes.iter().map(|t| AttrValue::Type(*t)).collect();
                attrs.set(types.clone(), AttrValue::List(list));
            }
        }
    }
    match def.input_dtypes(attrs)? {
        wanted if wanted.len() == args.iter().flatten().count() => {
            for (value, want) in args.iter().flatten().zip(wanted) {
                let got = builder.dtype(*value)?;
                if got != want {
                    return Err(invalid_argument!(
                        "op {}: '{}' is {got}, expected {want}",
                        def.name,
                        builder.graph().output_name(*value)
                    ));
                }
            }
            Ok(())
        }
        _ => Err(internal!("wrong number of inputs of {}", def.name)),
    }
}
