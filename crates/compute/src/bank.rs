//! Where a layer's experts come from: the one thing a mixture-of-experts op asks for.

use crate::{Activation, Matrix, Result, Weight};

/// One expert's weights, in memory for as long as the borrow lasts.
#[derive(Clone, Copy, Debug)]
pub struct Expert<'a> {
    /// `[intermediate, hidden]`
    pub gate: Matrix<'a>,
    /// `[intermediate, hidden]`
    pub up: Matrix<'a>,
    /// `[hidden, intermediate]`
    pub down: Matrix<'a>,
}

/// Takes experts over as they come, each with its index in the layer.
pub type Ready<'a> = &'a mut dyn FnMut(&[(u32, Expert<'_>)]);

/// The experts of all layers of a model.
///
/// A bank may hold them in memory or bring them from a disk; model code cannot tell which.
pub trait ExpertBank: Send + Sync {
    /// Width of an expert's hidden layer.
    fn intermediate(&self) -> usize;

    /// How gate and up meet.
    fn activation(&self) -> Activation;

    /// Calls `ready` one or more times, each time with some of the `wanted` experts of a layer,
    /// until each was handed over once. The weights are valid during the call only; the order
    /// is the bank's, and results may not depend on it.
    fn visit(&self, layer: usize, wanted: &[u32], ready: Ready<'_>) -> Result<()>;
}

/// A bank whose experts are all in memory.
#[derive(Debug)]
pub struct ResidentBank {
    intermediate: usize,
    activation: Activation,
    /// By layer (empty for layers without experts), then expert: gate, up, down.
    layers: Vec<Vec<[Weight; 3]>>,
}

impl ResidentBank {
    /// A bank over weights that are already loaded.
    pub fn new(intermediate: usize, activation: Activation, layers: Vec<Vec<[Weight; 3]>>) -> Self {
        ResidentBank { intermediate, activation, layers }
    }

    /// Bytes of all experts.
    pub fn bytes(&self) -> usize {
        self.layers.iter().flatten().flatten().map(Weight::bytes).sum()
    }
}

impl ExpertBank for ResidentBank {
    fn intermediate(&self) -> usize {
        self.intermediate
    }

    fn activation(&self) -> Activation {
        self.activation
    }

    fn visit(&self, layer: usize, wanted: &[u32], ready: Ready<'_>) -> Result<()> {
        let experts: Vec<(u32, Expert<'_>)> = wanted
            .iter()
            .map(|&id| {
                let [gate, up, down] = &self.layers[layer][id as usize];
                (id, Expert { gate: gate.view(), up: up.view(), down: down.view() })
            })
            .collect();
        ready(&experts);
        Ok(())
    }
}
