//! [`NodeClass`]: the classes of ops that passes and engines distinguish.

/// The class of an op, as in TensorFlow's `core/graph/graph.h`.
///
/// Ops on references (`RefSwitch`, …), stateless variants (`StatelessIf`, …) and XLA's names (`XlaIf`,
/// …) have the class of the op that they are variants of.
///
/// ```
/// use ferroflow_opdef::NodeClass;
/// assert_eq!(NodeClass::of("RefSwitch"), NodeClass::Switch);
/// assert_eq!(NodeClass::of("MatMul"), NodeClass::Other);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "TensorFlow's classes, named after their ops")]
pub enum NodeClass {
    Switch,
    Merge,
    Enter,
    Exit,
    NextIteration,
    LoopCond,
    ControlTrigger,
    /// A call of a function on the node's inputs.
    Call,
    RemoteCall,
    SymbolicGradient,
    If,
    Case,
    While,
    For,
    Send,
    Recv,
    Arg,
    Retval,
    Const,
    Placeholder,
    /// A variable that hands out references.
    Variable,
    VarHandle,
    ReadVariable,
    /// Returns its inputs unchanged.
    Identity,
    /// Writes datasets as graphs with their functions.
    DatasetToGraph,
    NoOp,
    Other,
}

impl NodeClass {
    /// Returns the class of the op `name`.
    pub fn of(name: &str) -> NodeClass {
        match name {
            "Switch" | "RefSwitch" | "_SwitchN" => NodeClass::Switch,
            "Merge" | "RefMerge" => NodeClass::Merge,
            "Enter" | "RefEnter" => NodeClass::Enter,
            "Exit" | "RefExit" => NodeClass::Exit,
            "NextIteration" | "RefNextIteration" => NodeClass::NextIteration,
            "LoopCond" => NodeClass::LoopCond,
            "ControlTrigger" => NodeClass::ControlTrigger,
            "DatasetToGraph"
            | "DatasetToGraphV2"
            | "SerializeIterator"
            | "AutoShardDataset"
            | "ExperimentalAutoShardDataset" => NodeClass::DatasetToGraph,
            "PartitionedCall" | "StatefulPartitionedCall" => NodeClass::Call,
            "RemoteCall" => NodeClass::RemoteCall,
            "SymbolicGradient" => NodeClass::SymbolicGradient,
            "If" | "StatelessIf" | "XlaIf" => NodeClass::If,
            "Case" | "StatelessCase" => NodeClass::Case,
            "While" | "StatelessWhile" | "XlaWhile" => NodeClass::While,
            "For" => NodeClass::For,
            "_Send" | "_HostSend" | "Send" => NodeClass::Send,
            "_Recv" | "_HostRecv" | "Recv" => NodeClass::Recv,
            "_Arg" => NodeClass::Arg,
            "_Retval" => NodeClass::Retval,
            "Const" => NodeClass::Const,
            "Placeholder" | "PlaceholderV2" | "PlaceholderWithDefault" => NodeClass::Placeholder,
            "Variable" | "VariableV2" | "TemporaryVariable" => NodeClass::Variable,
            "VarHandleOp" => NodeClass::VarHandle,
            "ReadVariableOp" => NodeClass::ReadVariable,
            "Identity" | "RefIdentity" | "IdentityN" | "StopGradient" | "PreventGradient"
            | "Snapshot" => NodeClass::Identity,
            "NoOp" => NodeClass::NoOp,
            _ => NodeClass::Other,
        }
    }

    /// Returns whether nodes of the class run functions of the graph's library.
    pub fn calls_functions(self) -> bool {
        matches!(
            self,
            NodeClass::Call | NodeClass::If | NodeClass::Case | NodeClass::While | NodeClass::For
        )
    }

    /// Returns whether nodes of the class move values between the frames and iterations of a loop.
    pub fn is_loop(self) -> bool {
        matches!(
            self,
            NodeClass::Enter | NodeClass::Exit | NodeClass::NextIteration | NodeClass::LoopCond
        )
    }

    /// Returns whether nodes of the class only move values, as Switch, Merge and the ops of loops
    /// do.
    pub fn is_control_flow(self) -> bool {
        self.is_loop() || matches!(self, NodeClass::Switch | NodeClass::Merge)
    }
}
