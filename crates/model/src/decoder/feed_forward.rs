//! What a layer makes of each position alone: a dense gated layer, routed experts, or both side by side.

use compute::{
    Activation, ExpertBank, Linear, Norm, RouterShape, SharedExpert, Step, Tensor, Vector,
};

use crate::Result;
use crate::load::Loader;
use crate::pass::Pass;
use crate::residual::Residual;
use crate::spec::{DenseSpec, FeedForwardSpec, MoeSpec, ParallelDenseSpec};

/// Rows that a guess of a layer's routing is made from.
const GUESSED_ROWS: usize = 64;

#[derive(Debug)]
pub(crate) enum FeedForward {
    Dense(Box<Dense>),
    Moe(Box<Moe>),
}

#[derive(Debug)]
pub(crate) struct Dense {
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
}

#[derive(Debug)]
pub(crate) struct Moe {
    router: Linear,
    routing: RouterShape,
    choice_bias: Option<Vector>,
    activation: Activation,
    expert_scale: Option<Vector>,
    shared: Option<Shared>,
    parallel_dense: Option<ParallelDense>,
}

#[derive(Debug)]
struct Shared {
    gate: Linear,
    up: Linear,
    down: Linear,
    router: Option<Linear>,
}

/// A dense layer parallel to the experts.
#[derive(Debug)]
struct ParallelDense {
    dense: Dense,
    dense_norm: Norm,
    router_norm: Norm,
    expert_input_norm: Norm,
    expert_norm: Norm,
}

impl FeedForward {
    /// `x` is the normed stream `h`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        h: Residual,
        x: Tensor,
        layer: usize,
    ) -> Tensor {
        let step = &mut *pass.step;
        match self {
            FeedForward::Dense(dense) => dense.forward(step, x),
            FeedForward::Moe(moe) => {
                let bank = pass.bank.expect("a model with experts is given a bank");
                match &moe.parallel_dense {
                    None => moe.forward(step, x, x, layer, bank),
                    Some(parallel) => {
                        // Both sides normed by themselves, and their sum.
                        let sum = parallel.dense.forward(step, x);
                        step.head_norm(sum, &parallel.dense_norm);
                        let routed = h.enter(step, &parallel.router_norm);
                        let x = h.enter(step, &parallel.expert_input_norm);
                        let y = moe.forward(step, routed, x, layer, bank);
                        step.head_norm(y, &parallel.expert_norm);
                        step.add(sum, y);
                        sum
                    }
                }
            }
        }
    }

    pub(crate) fn load(loader: &Loader<'_>, spec: &FeedForwardSpec) -> Result<FeedForward> {
        match spec {
            FeedForwardSpec::Dense(dense) => {
                Ok(FeedForward::Dense(Box::new(Dense::load(loader, dense)?)))
            }
            FeedForwardSpec::Moe(moe) => Ok(FeedForward::Moe(Box::new(Moe::load(loader, moe)?))),
        }
    }
}

impl Dense {
    fn forward(&self, step: &mut dyn Step, x: Tensor) -> Tensor {
        let projected = step.matmul(x, &[&self.gate, &self.up]);
        let hidden = step.glu(projected[0], projected[1], self.activation);
        step.matmul(hidden, &[&self.down]).remove(0)
    }

    fn load(loader: &Loader<'_>, spec: &DenseSpec) -> Result<Dense> {
        Ok(Dense {
            gate: loader.linear(&spec.gate)?,
            up: loader.linear(&spec.up)?,
            down: loader.linear(&spec.down)?,
            activation: spec.activation,
        })
    }
}

impl Moe {
    /// The router reads `routed`, the experts `x`.
    fn forward(
        &self,
        step: &mut dyn Step,
        routed: Tensor,
        x: Tensor,
        layer: usize,
        bank: &dyn ExpertBank,
    ) -> Tensor {
        // The router's logits, and that of the shared expert's gate.
        let shared_router = self.shared.as_ref().and_then(|shared| shared.router.as_ref());
        let linears: Vec<&Linear> = std::iter::once(&self.router).chain(shared_router).collect();
        let logits = step.matmul(routed, &linears);
        let scale = self.expert_scale.as_ref();
        let bias = self.choice_bias.as_ref();
        let routing = step.route(logits[0], &self.routing, bias, scale);
        let shared = self.shared.as_ref().map(|shared| SharedExpert {
            gate_proj: &shared.gate.weight,
            up_proj: &shared.up.weight,
            down_proj: &shared.down.weight,
            gate: logits.get(1).copied(),
        });
        step.moe(layer, x, routing, self.activation, bank, shared)
    }

    /// Asks the router before the layer's mixer has run: it mostly wants the same, and a bank that reads from a
    /// disk can begin. `norm` is the one between the mixer and the feed-forward.
    pub(super) fn look_ahead(
        &self,
        step: &mut dyn Step,
        h: Residual,
        norm: &Norm,
        layer: usize,
        bank: &dyn ExpertBank,
    ) {
        let mark = step.mark();
        // Some rows of a prompt tell which experts it will surely want.
        let stride = h.rows().div_ceil(GUESSED_ROWS);
        let rows: Vec<usize> = (0..h.rows()).step_by(stride).collect();
        let some = if stride > 1 { h.select(step, &rows) } else { h };
        let norm = self.parallel_dense.as_ref().map_or(norm, |parallel| &parallel.router_norm);
        let x = some.enter(step, norm);
        let logits = step.matmul(x, &[&self.router]).remove(0);
        let routing = step.route(logits, &self.routing, self.choice_bias.as_ref(), None);
        step.expect(layer, routing, bank);
        step.release(mark);
    }

    fn load(loader: &Loader<'_>, spec: &MoeSpec) -> Result<Moe> {
        let parallel = |spec: &ParallelDenseSpec| -> Result<ParallelDense> {
            Ok(ParallelDense {
                dense: Dense::load(loader, &spec.dense)?,
                dense_norm: loader.norm(&spec.dense_norm)?,
                router_norm: loader.norm(&spec.router_norm)?,
                expert_input_norm: loader.norm(&spec.expert_input_norm)?,
                expert_norm: loader.norm(&spec.expert_norm)?,
            })
        };
        Ok(Moe {
            router: loader.linear(&spec.router)?,
            routing: spec.routing,
            choice_bias: spec.choice_bias.as_ref().map(|b| loader.vector(b)).transpose()?,
            activation: spec.activation,
            expert_scale: spec.expert_scale.as_ref().map(|s| loader.vector(s)).transpose()?,
            shared: match &spec.shared {
                Some(shared) => Some(Shared {
                    gate: loader.linear(&shared.gate)?,
                    up: loader.linear(&shared.up)?,
                    down: loader.linear(&shared.down)?,
                    router: shared.router.as_ref().map(|r| loader.linear(r)).transpose()?,
                }),
                None => None,
            },
            parallel_dense: spec.parallel_dense.as_ref().map(parallel).transpose()?,
        })
    }
}
