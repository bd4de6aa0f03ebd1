//! [`Weights`]: the weights of a shard, and their updates.

use super::checkpoint::{self, Checkpoint, Head, Part, Rule};
use super::request::Failure;
use super::shared::Shared;
use super::versions;
use crate::comm::last_level_cache_bytes;
use crate::comm::raw::RawBuffer;
use crate::error::Result;
use crate::kernel;
use crate::limits::CACHE_LINE_BYTES;
use crate::memory::{Element, View};
use crate::optimizer::{self, Optimizer, Step};
use crate::types::{Combine, DataType, Finish};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Bytes of gradients that are summed at a time, which stay in a core's first-level cache with the
/// weights that they change.
const SUMMED_BYTES: usize = 8 << 10;

/// Changes a range of weights: which elements of all tensors they are, their gradient, and the
/// weights.
pub type UpdateFn = Box<dyn FnMut(Range<usize>, &[f32], &mut [f32]) + Send>;

/// See the module.
pub struct Weights {
    shared: Arc<Shared>,
    index: usize,
    rule: Rule,
    /// Rules that hold from later versions on, in the order in which they were given.
    later: Vec<(u64, Rule)>,
    /// Updates before the first one with this kind of optimizer.
    began: u64,
    /// In place of the rule.
    function: Option<UpdateFn>,
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

/// One block of an update.
struct Block {
    start: usize,
    count: usize,
    gradient: View,
}

impl Weights {
    pub fn new(
        shared: Arc<Shared>,
        index: usize,
        rule: Rule,
        function: Option<UpdateFn>,
    ) -> Result<Weights> {
        let mut weights = Weights {
            memory: shared.data.own(),
            states: Vec::new(),
            sum: RawBuffer::plain(SUMMED_BYTES)?,
            version: 0,
            cache_bytes: last_level_cache_bytes().unwrap_or(usize::MAX),
            index,
            rule,
            later: Vec::new(),
            began: 0,
            function,
            shared,
        };
        weights.states = weights.new_states()?;
        Ok(weights)
    }

    /// Memory for the states of the optimizer, which its first step does not read.
    fn new_states(&self) -> Result<Vec<RawBuffer>> {
        let bytes = self.range().len() * size_of::<f32>();
        let states = (0..self.rule.optimizer.states()).map(|_| RawBuffer::plain(bytes));
        states.collect()
    }

    /// Its elements of all tensors.
    fn range(&self) -> Range<usize> {
        let layout = &self.shared.layout;
        layout.range(layout.shard_of(self.index))
    }

    /// From version `from` on, or, if that is there, from the next one: updates by this rule.
    pub fn set_rule(&mut self, from: u64, rule: Rule) {
        self.later.push((from.max(self.version + 1), rule));
    }

    /// Takes the rules that hold from this version on.
    fn take_rules(&mut self, version: u64) -> Result<()> {
        let mut due = Vec::new();
        self.later.retain(|&(from, rule)| {
            if from <= version {
                due.push((from, rule));
            }
            from > version
        });
        due.sort_by_key(|&(from, _)| from);
        for (_, rule) in due {
            let old = std::mem::replace(&mut self.rule, rule);
            let kind = |rule: Rule| {
                (
                    std::mem::discriminant(&rule.optimizer),
                    rule.optimizer.states(),
                )
            };
            if kind(old) != kind(rule) {
                self.states = self.new_states()?;
                self.began = version - 1;
            }
        }
        Ok(())
    }

    /// Writes a checkpoint. `pushes` are those of each worker that are in the weights.
    pub fn save(&self, folder: &Path, pushes: Vec<u64>) -> std::result::Result<(), Failure> {
        let head = Head {
            tensors: self.shared.tensors.clone(),
            version: self.version,
            began: self.began,
            rule: self.rule,
            later: self.later.clone(),
            pushes,
        };
        let size = size_of::<f32>();
        let read = |which: usize, range: Range<usize>, to: &mut [u8]| {
            let from = match which {
                0 => self.current(),
                state => self.states[state - 1].view(),
            };
            kernel::read(from, range.start * size, to);
        };
        let layout = &self.shared.layout;
        let part = Part {
            shard: (layout.shard_of(self.index), layout.shards()),
            server: self.index,
            range: self.range(),
            read: &read,
        };
        checkpoint::save(folder, &head, &part)
    }

    /// Begins with what a checkpoint has.
    pub fn begin_with(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let head = &checkpoint.head;
        (self.version, self.began) = (head.version, head.began);
        (self.rule, self.later) = (head.rule, head.later.clone());
        self.states = self.new_states()?;
        for (state, numbers) in self.states.iter().zip(&checkpoint.states) {
            state.write(0, numbers);
        }
        kernel::write(self.current(), 0, bytemuck::cast_slice(&checkpoint.weights));
        let (words, at) = (&self.shared.words, self.shared.layout.versions());
        words.store(at, self.version);
        words.store(at + 1, self.version);
        Ok(())
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

    /// The weights to begin with are there: writes them in the type in which they are pulled.
    pub fn publish_first(&self) {
        let layout = &self.shared.layout;
        if layout.pulls == DataType::F32 {
            return;
        }
        let per_block = SUMMED_BYTES / size_of::<f32>();
        let count = self.range().len();
        for start in (0..count).step_by(per_block) {
            self.publish(self.version, start, per_block.min(count - start));
        }
    }

    /// Writes a block of the weights in the type in which they are pulled.
    fn publish(&self, version: u64, start: usize, count: usize) {
        let step = Step {
            optimizer: Optimizer::sgd(),
            rate: 0.0,
            number: 1,
            scale: 1.0,
        };
        // An update by nothing.
        kernel::fill(self.sum.view(), 0);
        let nothing = self.sum.view().part(0, count * size_of::<f32>());
        let weights = block(self.first(), DataType::F32, start, count);
        let pulls = self.shared.layout.pulls;
        let published = block(self.of_version(version), pulls, start, count);
        optimizer::update(
            &step,
            &optimizer::Weights {
                gradient: (DataType::F32, nothing),
                from: weights,
                to: weights,
                states: [View::empty(); 2],
                published: Some((pulls, published)),
            },
        );
    }

    fn part(&self, start: usize, dtype: DataType) -> View {
        self.memory
            .part(start, self.range().len() * dtype.size_bytes())
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

    #[cfg(test)]
    pub fn to_vec(&self) -> Vec<f32> {
        floats_of(DataType::F32, self.current())
    }

    /// The weights in f32.
    fn current(&self) -> View {
        match self.shared.layout.pulls {
            DataType::F32 => self.of_version(self.version),
            _ => self.first(),
        }
    }

    /// Makes the next version of the weights, with the mean of these gradients.
    pub fn update(&mut self, gradients: &[View]) -> Result<()> {
        let (version, layout) = (self.version + 1, &self.shared.layout);
        let dtype = layout.gradients;
        let words = self.shared.words.own();
        let words = words.part(layout.versions() * size_of::<u64>(), 2 * size_of::<u64>());
        self.take_rules(version)?;
        versions::begin(&words, version);
        let count = self.range().len();
        let per_block = match gradients.len() {
            1 if self.function.is_none() => count,
            _ => SUMMED_BYTES / size_of::<f32>(),
        };
        // What does not stay in the cache until it is pulled need not pass through it.
        let is_streamed = gradients.len() == 1
            && kernel::is_for_streaming(3 * count * size_of::<f32>(), self.cache_bytes);
        for start in (0..count).step_by(per_block) {
            let count = per_block.min(count - start);
            let parts = gradients
                .iter()
                .map(|&slot| block(slot, dtype, start, count));
            let gradient = match &parts.collect::<Vec<View>>()[..] {
                &[only] => only,
                several => {
                    let sum = self.sum.view().part(0, count * dtype.size_bytes());
                    let finish = Finish::Divide(several.len() as u32);
                    kernel::reduce(dtype, Combine::Sum, finish, several, &[sum]);
                    sum
                }
            };
            let block = Block {
                start,
                count,
                gradient,
            };
            match self.function.take() {
                None => self.update_block(version, &block, is_streamed),
                Some(mut function) => {
                    self.call(&mut function, version, &block);
                    self.function = Some(function);
                }
            }
        }
        versions::end(&words, version);
        self.version = version;
        Ok(())
    }

    /// The weights that an update of this version reads and writes.
    fn old_and_new(&self, version: u64) -> (View, View) {
        match self.shared.layout.pulls {
            DataType::F32 => (self.current(), self.of_version(version)),
            _ => (self.first(), self.first()),
        }
    }

    fn update_block(&self, version: u64, one: &Block, is_streamed: bool) {
        let &Block {
            start,
            count,
            gradient,
        } = one;
        let step = Step {
            optimizer: self.rule.optimizer,
            rate: self.rule.rate,
            number: version - self.began,
            scale: 1.0,
        };
        let layout = &self.shared.layout;
        let (from, to) = self.old_and_new(version);
        let of = |view: View| block(view, DataType::F32, start, count);
        let state = |at: usize| {
            let state = self.states.get(at);
            state.map_or(View::empty(), |state| of(state.view()))
        };
        let published = (layout.pulls != DataType::F32).then(|| {
            let all = self.of_version(version);
            (layout.pulls, block(all, layout.pulls, start, count))
        });
        let update = match is_streamed {
            true => optimizer::update_streaming,
            false => optimizer::update,
        };
        update(
            &step,
            &optimizer::Weights {
                gradient: (layout.gradients, gradient),
                from: of(from),
                to: of(to),
                states: [state(0), state(1)],
                published,
            },
        );
    }

    /// Has the caller's function update a block. It gets copies: peers read the weights meanwhile.
    fn call(&self, function: &mut UpdateFn, version: u64, one: &Block) {
        let &Block {
            start,
            count,
            gradient,
        } = one;
        let (from, to) = self.old_and_new(version);
        let mut weights = vec![0f32; count];
        let bytes = bytemuck::cast_slice_mut(&mut weights);
        kernel::read(block(from, DataType::F32, start, count), 0, bytes);
        let first = self.range().start + start;
        let gradient = floats_of(self.shared.layout.gradients, gradient);
        function(first..first + count, &gradient, &mut weights);
        let to = block(to, DataType::F32, start, count);
        kernel::write(to, 0, bytemuck::cast_slice(&weights));
        if self.shared.layout.pulls != DataType::F32 {
            self.publish(version, start, count);
        }
    }
}

/// `count` elements from `start` on.
fn block(view: View, dtype: DataType, start: usize, count: usize) -> View {
    let size = dtype.size_bytes();
    view.part(start * size, count * size)
}

/// Numbers of f32, f16 or bf16.
fn floats_of(dtype: DataType, view: View) -> Vec<f32> {
    fn read<T: Element>(view: View) -> Vec<T> {
        let mut all = vec![T::zeroed(); view.len_bytes() / size_of::<T>()];
        kernel::read(view, 0, bytemuck::cast_slice_mut(&mut all));
        all
    }
    match dtype {
        DataType::F16 => read(view).into_iter().map(half::f16::to_f32).collect(),
        DataType::Bf16 => read(view).into_iter().map(half::bf16::to_f32).collect(),
        _ => read(view),
    }
}

const _: () = assert!(SUMMED_BYTES.is_multiple_of(CACHE_LINE_BYTES));
