//! How the weights of a parameter server follow gradients: SGD, Adam and AdamW.
//!
//! Pure code, without threads or a clock: an [`Optimizer`] is what a caller chooses, a [`Step`] has
//! the numbers of one update, and [`update`] applies them to a range of weights. The arithmetic is
//! in `kernel/update.rs`: in f32, without fused multiply-add, so that every CPU gives the same bits
//! whatever range of the weights a call has. Source: the algorithms of the documentation of
//! `torch.optim.SGD`, `Adam` and `AdamW` (PyTorch 2), in the order in which their code for a single
//! tensor computes; PyTorch itself fuses some of the operations, so that last bits differ.

mod options;
mod update;

#[cfg(test)]
mod tests;

pub use options::Optimizer;
pub use update::{Step, Weights, has_nonfinite, update, update_streaming};
