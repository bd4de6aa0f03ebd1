//! What the commands of `linerate` that run ranks have in common, the experiments among them.
//!
//! A command reads its flags ([`flags`]) and the environment ([`settings`]), starts its ranks
//! ([`spawn`]), which bind themselves to cores ([`binding`]) and join each other
//! ([`settings::join`]), writes what was measured ([`output`]), draws it ([`plot`]) and ends
//! ([`ending`]). [`access`] reads and writes the memory of a rank, and [`fabric`] runs all ranks of
//! a sparse allreduce in one process on a modelled network. [`step`] reduces the gradients of a
//! trace on a fabric, and [`child`] runs other commands.

pub mod access;
pub mod binding;
pub mod child;
pub mod ending;
pub mod fabric;
pub mod flags;
pub mod output;
pub mod plot;
mod process;
pub mod progress;
pub mod settings;
pub mod spawn;
pub mod step;
