//! Functions, calls of them, and functional control flow.

use super::GraphBuilder;
use crate::{ARG, Function, Output, RETVAL};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{AttrValue, FuncRef};
use ferroflow_tensor::DType;

fn func(name: &str) -> AttrValue {
    AttrValue::Func(FuncRef {
        name: name.to_string(),
        ..Default::default()
    })
}

fn types(dtypes: &[DType]) -> AttrValue {
    AttrValue::List(dtypes.iter().map(|t| AttrValue::Type(*t)).collect())
}

impl<'r> GraphBuilder<'r> {
    /// Defines a function of arguments of these dtypes. Its body sees its arguments only, and the
    /// functions defined before.
    ///
    /// # Errors
    /// Those of `body`, and INVALID_ARGUMENT if the function is malformed.
    pub fn function(
        &mut self,
        name: &str,
        args: &[DType],
        body: impl FnOnce(&mut GraphBuilder<'r>, &[Output]) -> Result<Vec<Output>>,
    ) -> Result<()> {
        let mut inner = GraphBuilder::new(self.registry);
        inner.library = std::mem::take(&mut self.library);
        let made = inner.make_body(args, body);
        self.library = std::mem::take(&mut inner.library);
        made?;
        let function = Function::new(inner.graph)?;
        self.library.insert(name, function);
        Ok(())
    }

    fn make_body(
        &mut self,
        args: &[DType],
        body: impl FnOnce(&mut GraphBuilder<'r>, &[Output]) -> Result<Vec<Output>>,
    ) -> Result<()> {
        let mut inputs = Vec::with_capacity(args.len());
        for (i, dtype) in args.iter().enumerate() {
            let arg = self.op(ARG).name(&format!("arg_{i}"));
            let arg = arg.attr("T", AttrValue::Type(*dtype));
            inputs.push(arg.attr("index", AttrValue::Int(i as i64)).output()?);
        }
        for (i, result) in body(self, &inputs)?.into_iter().enumerate() {
            let retval = self.op(RETVAL).name(&format!("result_{i}")).input(result);
            retval.attr("index", AttrValue::Int(i as i64)).build()?;
        }
        let effects = self.graph.iter().filter(|(_, n)| n.has_effects());
        let effects = effects.map(|(id, _)| id).collect();
        self.graph.set_targets(effects);
        self.check()
    }

    /// Calls a function that was defined before.
    ///
    /// # Errors
    /// NOT_FOUND if the function does not exist; the errors of adding the node.
    pub fn call(&mut self, name: &str, args: &[Output]) -> Result<Vec<Output>> {
        let function = self.library.get(name)?.clone();
        let op = self.op("StatefulPartitionedCall").name(name).inputs(args);
        op.attr("Tout", types(&function.results))
            .attr("f", func(name))
            .outputs()
    }

    /// A functional conditional: calls `then` or `otherwise` with `args`.
    ///
    /// # Errors
    /// NOT_FOUND if a function does not exist; the errors of adding the node.
    pub fn if_op(
        &mut self,
        pred: Output,
        args: &[Output],
        then: &str,
        otherwise: &str,
    ) -> Result<Vec<Output>> {
        let results = self.library.get(then)?.results.clone();
        if self.library.get(otherwise)?.results != results {
            return Err(invalid_argument!(
                "'{then}' and '{otherwise}' return different dtypes"
            ));
        }
        let op = self.op("If").input(pred).inputs(args);
        op.attr("Tout", types(&results))
            .attr("then_branch", func(then))
            .attr("else_branch", func(otherwise))
            .outputs()
    }

    /// A functional loop: calls `body` on the variables for as long as `cond` of them is true.
    ///
    /// # Errors
    /// NOT_FOUND if a function does not exist; the errors of adding the node.
    pub fn while_op(&mut self, vars: &[Output], cond: &str, body: &str) -> Result<Vec<Output>> {
        self.library.get(cond)?;
        self.library.get(body)?;
        let op = self.op("While").inputs(vars);
        op.attr("cond", func(cond))
            .attr("body", func(body))
            .outputs()
    }
}
