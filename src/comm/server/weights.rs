//! [`Weights`]: the weights of a shard, and their updates.

use super::options::ServerOptions;
use super::shared::Shared;
use crate::comm::last_level_cache_bytes;
use crate::comm::raw::RawBuffer;
use crate::error::Result;
use crate::kernel;
use crate::limits::CACHE_LINE_BYTES;
use crate::memory::View;
use crate::optimizer::{self, Optimizer, Step};
use crate::types::{Combine, DataType, Finish};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Bytes of gradients that are summed at a time, which stay in a core's first-level cache with the
/// weights that they change.
const SUMMED_BYTES: usize = 8 << 10;

/// See the module.
pub struct Weights {
    shared: Arc<Shared>,
    index: usize,
    options: ServerOptions,
    /// This rank's part of the data window.
    memory: View,
    /// Of the optimizer.
    states: Vec<RawBuffer>,
    /// A block of a sum of gradients.
    sum: RawBuffer,
    version: u64,
    /// Of the last-level cache.
    cache_bytes: usize,
}

impl Weights {
    pub fn new(shared: Arc<Shared>, index: usize, options: ServerOptions) -> Result<Weights> {
        let bytes = shared.layout.range(index).len() * size_of::<f32>();
        let states = (0..options.optimizer.states()).map(|_| RawBuffer::plain(bytes));
        Ok(Weights {
            memory: shared.data.own(),
            states: states.collect::<Result<_>>()?,
            sum: RawBuffer::plain(SUMMED_BYTES)?,
            version: 0,
            cache_bytes: last_level_cache_bytes().unwrap_or(usize::MAX),
            index,
            options,
            shared,
        })
    }

    /// Updates so far.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Where a push of a worker lies.
    pub fn slot(&self, worker: usize, push: u64) -> View {
        let layout = &self.shared.layout;
        self.part(layout.slot(self.index, worker, push), layout.gradients)
    }

    /// Whether a push has a NaN or an infinity.
    pub fn has_nonfinite(&self, worker: usize, push: u64) -> bool {
        optimizer::has_nonfinite(self.shared.layout.gradients, self.slot(worker, push))
    }

    /// The weights to begin with are there: writes them in the type in which they are pulled.
    pub fn publish_first(&self) {
        let layout = &self.shared.layout;
        if layout.pulls == DataType::F32 {
            return;
        }
        let (all, to) = (self.first(), self.of_version(0));
        let step = Step {
            optimizer: Optimizer::sgd(),
            rate: 0.0,
            number: 1,
            scale: 1.0,
        };
        // An update by nothing.
        kernel::fill(self.sum.view(), 0);
        let (dtype, block) = (layout.pulls, SUMMED_BYTES / size_of::<f32>());
        let count = layout.range(self.index).len();
        for start in (0..count).step_by(block) {
            let len = block.min(count - start);
            let of = |view: View, size: usize| view.part(start * size, len * size);
            let nothing = self.sum.view().part(0, len * size_of::<f32>());
            let weights = of(all, size_of::<f32>());
            let published = Some((dtype, of(to, dtype.size_bytes())));
            let states = [View::empty(); 2];
            optimizer::update(
                &step,
                (DataType::F32, nothing),
                weights,
                weights,
                states,
                published,
            );
        }
    }

    fn part(&self, start: usize, dtype: DataType) -> View {
        let count = self.shared.layout.range(self.index).len();
        self.memory.part(start, count * dtype.size_bytes())
    }

    /// The weights in f32 that are changed in place, or were there at first.
    fn first(&self) -> View {
        self.part(self.shared.layout.first(self.index), DataType::F32)
    }

    /// The weights of a version as workers pull them.
    fn of_version(&self, version: u64) -> View {
        let layout = &self.shared.layout;
        self.part(layout.weights(self.index, version), layout.pulls)
    }

    /// Makes the next version of the weights, with the mean of these gradients.
    pub fn update(&mut self, gradients: &[View]) {
        let (version, layout) = (self.version + 1, &self.shared.layout);
        let words = &self.shared.words;
        words.store(layout.versions() + 1, version);
        // Who reads a weight of the new version in the place of an older one then sees that it is
        // being written.
        fence(Ordering::SeqCst);
        let step = Step {
            optimizer: self.options.optimizer,
            rate: self.options.rate,
            number: version,
            scale: 1.0,
        };
        let (from, to, published) = match layout.pulls {
            DataType::F32 => (
                self.of_version(self.version),
                self.of_version(version),
                None,
            ),
            dtype => {
                let published = Some((dtype, self.of_version(version)));
                (self.first(), self.first(), published)
            }
        };
        let size = layout.gradients.size_bytes();
        let count = layout.range(self.index).len();
        let block = match gradients.len() {
            1 => count,
            _ => SUMMED_BYTES / size,
        };
        // What does not stay in the cache until it is pulled need not pass through it.
        let is_streamed = gradients.len() == 1
            && kernel::is_for_streaming(3 * count * size_of::<f32>(), self.cache_bytes);
        let (mut start, all) = (0, gradients.len() as u32);
        while start < count {
            let len = block.min(count - start);
            let of = |view: View, size: usize| view.part(start * size, len * size);
            let sources: Vec<View> = gradients.iter().map(|&slot| of(slot, size)).collect();
            let gradient = match &sources[..] {
                &[only] => only,
                several => {
                    let sum = self.sum.view().part(0, len * size);
                    let finish = Finish::Divide(all);
                    kernel::reduce(layout.gradients, Combine::Sum, finish, several, &[sum]);
                    sum
                }
            };
            let state = |at: usize| {
                let state = self.states.get(at);
                state.map_or(View::empty(), |state| of(state.view(), size_of::<f32>()))
            };
            let published = published.map(|(dtype, view)| (dtype, of(view, dtype.size_bytes())));
            let update = match is_streamed {
                true => optimizer::update_streaming,
                false => optimizer::update,
            };
            update(
                &step,
                (layout.gradients, gradient),
                of(from, size_of::<f32>()),
                of(to, size_of::<f32>()),
                [state(0), state(1)],
                published,
            );
            start += len;
        }
        // The weights are there before the version that names them.
        fence(Ordering::SeqCst);
        words.store(layout.versions(), version);
        self.version = version;
    }
}

const _: () = assert!(SUMMED_BYTES.is_multiple_of(CACHE_LINE_BYTES));
