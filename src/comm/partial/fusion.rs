//! [`PartialFusion`]: the gradients of a model, packed into few partial allreduces.

use super::PartialAllreduce;
use crate::comm::Communicator;
use crate::comm::buffer::Buffer;
use crate::comm::fusion::check_declarations;
use crate::error::{Error, Result};
use crate::fusion::{TensorSet, TensorSpec};
use crate::memory::{Access, Element, Kept, ProcessOwned, View};
use crate::partial::{Delivery, PartialOptions, RoundReport};
use crate::prng::mix;
use crate::types::DataType;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What an error names as missing while another thread hands a whole step over.
const HANDED_OVER: &str = "a fusion buffer that another thread hands over";

/// How the tensors of a [`PartialFusion`] share rounds. All ranks give equal options.
#[derive(Clone, Debug, PartialEq)]
pub struct PartialFusionOptions {
    /// The options of every fusion buffer's rounds. Default: [`PartialOptions::default`].
    pub partial: PartialOptions,
    /// Bytes of one fusion buffer, 1 to 2^40. Default: 64 MiB. A larger tensor has a buffer of its
    /// own. Every buffer has a thread, a communicator, and the snapshots and results that `partial`
    /// asks for. So few large buffers cost less; many small ones begin their rounds earlier.
    pub bytes_max: u64,
    /// Whether all tensors of a step enter the same round. There is then one buffer, regardless of
    /// `bytes_max`, and its round begins when the last tensor is submitted. All tensors need to
    /// have one type. Default: false, so each buffer has rounds of its own; the paper has a round
    /// for each tensor.
    pub step_atomic: bool,
}

impl Default for PartialFusionOptions {
    fn default() -> PartialFusionOptions {
        PartialFusionOptions {
            partial: PartialOptions::default(),
            bytes_max: 64 << 20,
            step_atomic: false,
        }
    }
}

/// Partial allreduces for a declared set of tensors, step after step. See [`PartialFusion::new`].
///
/// `Send + Sync`: several threads may submit. Each fusion buffer is a [`PartialAllreduce`], with
/// the same rules for deaths, stopped processes and drops.
#[derive(Debug)]
pub struct PartialFusion {
    set: TensorSet,
    /// For each tensor its buffer and its place there; `None` for a tensor without elements.
    places: Vec<Option<(usize, usize)>>,
    fused: Vec<Fused>,
    is_ordered: bool,
    /// Number of steps whose results have been taken. A thread holds the lock while it takes the
    /// results of a step, so that one thread takes all results of that step.
    taken: ProcessOwned<Mutex<u64>>,
}

/// A gradient that waits for the others of its step. It is borrowed until they have come.
#[derive(Debug)]
struct Submitted {
    view: View,
    _kept: Option<Kept>,
}

/// One fusion buffer.
#[derive(Debug)]
struct Fused {
    tensors: Vec<usize>,
    partial: PartialAllreduce,
    /// By place, the submitted gradients of the present step. A thread holds this lock while it
    /// hands a whole step over, which may wait until a result is taken. So a thread that takes
    /// results must not wait for this lock.
    gradients: ProcessOwned<Mutex<Vec<Option<Submitted>>>>,
    /// Number of whole steps that have been handed over.
    steps: AtomicU64,
}

impl PartialFusion {
    /// Makes partial allreduces for these tensors. Every rank submits each tensor once in every
    /// step, in any order. Collective: all ranks call it, with the same tensors and options.
    ///
    /// Tensors of one type share fusion buffers, in the order in which they are declared. So
    /// declare them in the order in which the backward pass computes their gradients.
    ///
    /// ```
    /// use linerate::options::PartialFusionOptions;
    /// use linerate::{Communicator, Config, DataType, PartialFusion, TensorSpec};
    /// let job = format!("partial-fusion-{}", std::process::id());
    /// let run = |rank| -> linerate::Result<f32> {
    ///     let comm = Communicator::join(rank, 4, &job, Config::default())?;
    ///     let spec = |name: &str, count| TensorSpec { name: name.into(), count, dtype: DataType::F32 };
    ///     let tensors = vec![spec("bias", 4), spec("weight", 16)];
    ///     let fusion = PartialFusion::new(&comm, tensors, PartialFusionOptions::default())?;
    ///     let gradients = [comm.alloc::<f32>(4)?, comm.alloc(16)?];
    ///     let updates = [comm.alloc::<f32>(4)?, comm.alloc(16)?];
    ///     let mut weight = 0.0f32;
    ///     for _step in 0..5 {
    ///         gradients[1].write(0, &[rank as f32; 16])?;
    ///         fusion.submit(1, &gradients[1])?; // as soon as it is computed
    ///         fusion.submit(0, &gradients[0])?; // the last of the step: all may be overwritten now
    ///         let reports = fusion.next(&updates)?;
    ///         assert!(reports.iter().flatten().all(|report| report.active_count() >= 2));
    ///         weight -= updates[1].as_slice()?[0];
    ///     }
    ///     fusion.finish(&updates, |_buffer, _report| weight -= updates[1].to_vec().unwrap()[0])?;
    ///     Ok(weight)
    /// };
    /// let weights = std::thread::scope(|scope| {
    ///     let ranks: Vec<_> = (0..4).map(|rank| scope.spawn(move || run(rank))).collect();
    ///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// assert_eq!(weights, [-7.5; 4], "5 steps of an average of 1.5, all of them, once");
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: an option is out of range, the tensors have several types with
    /// `step_atomic`, or the ranks give different tensors or options (the text names a rank).
    /// [`Error::Exhausted`]: there is not enough memory, or there are not enough file descriptors,
    /// for all fusion buffers.
    pub fn new(
        comm: &Communicator,
        tensors: Vec<TensorSpec>,
        options: PartialFusionOptions,
    ) -> Result<PartialFusion> {
        let set = TensorSet::new(tensors)?;
        options.check(comm.ranks(), &set)?;
        let fingerprint = (0..set.len()).fold(options.fingerprint(), |hash, tensor| {
            mix(hash ^ set.fingerprint_of(tensor))
        });
        check_declarations(comm, &set, fingerprint, "PartialFusionOptions")?;
        let process = comm.inner.driving.process();
        let mut places = vec![None; set.len()];
        let mut fused = Vec::new();
        for tensors in group(&set, &options) {
            for (place, &tensor) in tensors.iter().enumerate() {
                places[tensor] = Some((fused.len(), place));
            }
            let count = tensors.iter().map(|&tensor| set.spec(tensor).count).sum();
            let dtype = set.spec(tensors[0]).dtype;
            fused.push(Fused {
                partial: PartialAllreduce::new(comm, dtype, count, options.partial.clone())?,
                gradients: {
                    let none = tensors.iter().map(|_| None).collect();
                    ProcessOwned::new(process, Mutex::new(none))
                },
                tensors,
                steps: AtomicU64::new(0),
            });
        }
        Ok(PartialFusion {
            set,
            places,
            fused,
            is_ordered: options.partial.delivery == Delivery::Ordered,
            taken: ProcessOwned::new(process, Mutex::new(0)),
        })
    }

    /// The indices of the tensors of each fusion buffer. The fusion buffers have the order of the
    /// reports of [`next`](PartialFusion::next). Tensors without elements are in no fusion buffer.
    pub fn buffers(&self) -> impl ExactSizeIterator<Item = &[usize]> {
        self.fused.iter().map(|fused| &fused.tensors[..])
    }

    /// Submits this rank's gradient of a tensor for the next step. The gradient stays borrowed
    /// until all tensors of its fusion buffer have been submitted: the submit of the last of them
    /// copies all. This last submit may wait until a result is taken, as
    /// [`PartialAllreduce::submit`] does.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: there is no such tensor, the buffer has another type or length,
    /// or the tensor is submitted again before the rest of its fusion buffer. Otherwise as
    /// [`PartialAllreduce::submit`].
    pub fn submit<T: Element>(&self, tensor: usize, gradient: &Buffer<T>) -> Result<()> {
        let place = self.places.get(tensor).ok_or_else(|| {
            Error::invalid(format!(
                "tensor {tensor} submitted, {} are declared",
                self.set.len()
            ))
        })?;
        self.check_length(tensor, gradient)?;
        let Some((buffer, place)) = *place else {
            return Ok(()); // It has no elements.
        };
        let fused = &self.fused[buffer];
        let mut gradients = fused.gradients.get()?.lock().expect("no holder panics");
        if gradients[place].is_some() {
            return Err(Error::invalid(format!(
                "{} submitted twice in step {} of its fusion buffer, which waits for {}",
                self.set.label(tensor),
                fused.steps(),
                self.missing(fused, &gradients)
            )));
        }
        let kept = (gradient.raw()).keep_all(Access::Shared, "a step of a partial fusion")?;
        gradients[place] = Some(Submitted {
            view: gradient.raw().view(),
            _kept: kept,
        });
        if gradients.iter().any(Option::is_none) {
            return Ok(());
        }
        let whole: Vec<View> = gradients.iter().flatten().map(|g| g.view).collect();
        if let Err(error) = fused.partial.submit_views(&whole) {
            gradients[place] = None; // So that the caller can submit it again later.
            return Err(error);
        }
        gradients.iter_mut().for_each(|gradient| *gradient = None);
        // Release: publishes the submit to a thread that loads the new count in `Fused::steps`.
        fused.steps.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Takes the next result of every fusion buffer, and copies them to `updates`, which has one
    /// buffer for each tensor. Returns one report for each fusion buffer: without `step_atomic`, a
    /// rank's gradient may be in this round in one fusion buffer and in a later round in another.
    ///
    /// `None` in place of a report means that no result is due in that fusion buffer; the updates
    /// of its tensors are then unchanged. With ordered delivery a result is due after every step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: `updates` is not one buffer of the right type and length for
    /// every tensor, or a tensor of the step has not been submitted. Otherwise as
    /// [`PartialAllreduce::next`].
    pub fn next<T: Element>(&self, updates: &[Buffer<T>]) -> Result<Vec<Option<RoundReport>>> {
        self.check_updates(updates)?;
        let mut taken = self.taken.get()?.lock().expect("no holder panics");
        let steps = self.fused.iter().map(Fused::steps);
        if self.is_ordered && steps.max().is_some_and(|most| most > *taken) {
            self.check_handed_over(*taken + 1)?;
        }
        let next = |fused: &Fused| fused.partial.next_parts(&fused.of(updates));
        let reports: Vec<_> = self.fused.iter().map(next).collect::<Result<_>>()?;
        if reports.iter().any(Option::is_some) {
            *taken += 1;
        }
        Ok(reports)
    }

    /// Runs one round in every fusion buffer, as [`PartialAllreduce::finish`] does: it waits for
    /// all ranks and delivers everything that is pending on any of them. It takes every result that
    /// was not taken yet: it copies each to the `updates` of its fusion buffer's tensors, and then
    /// calls `visit` with the index of the fusion buffer and the report. Collective, after the same
    /// number of steps on all ranks.
    ///
    /// # Errors
    /// As [`next`](PartialFusion::next) and [`PartialAllreduce::finish`].
    pub fn finish<T: Element>(
        &self,
        updates: &[Buffer<T>],
        mut visit: impl FnMut(usize, RoundReport),
    ) -> Result<()> {
        self.check_updates(updates)?;
        let mut taken = self.taken.get()?.lock().expect("no holder panics");
        let steps = self.fused.iter().map(Fused::steps).max().unwrap_or(0);
        self.check_handed_over(steps)?;
        for fused in &self.fused {
            let Ok(gradients) = fused.gradients.get()?.try_lock() else {
                return Err(self.not_whole(steps, HANDED_OVER));
            };
            if gradients.iter().any(Option::is_some) {
                return Err(self.not_whole(steps, &self.missing(fused, &gradients)));
            }
        }
        for (buffer, fused) in self.fused.iter().enumerate() {
            (fused.partial).finish_parts(&fused.of(updates), |report| visit(buffer, report))?;
        }
        *taken = steps;
        Ok(())
    }

    /// Checks that there is one update of the right type and length for each tensor.
    fn check_updates<T: Element>(&self, updates: &[Buffer<T>]) -> Result<()> {
        if updates.len() != self.set.len() {
            return Err(Error::invalid(format!(
                "{} updates for {} tensors: one for each",
                updates.len(),
                self.set.len()
            )));
        }
        let mut all = updates.iter().enumerate();
        all.try_for_each(|(tensor, update)| self.check_length(tensor, update))
    }

    /// Checks that every fusion buffer has handed over this many whole steps.
    fn check_handed_over(&self, steps: u64) -> Result<()> {
        let Some(behind) = self.fused.iter().find(|fused| fused.steps() < steps) else {
            return Ok(());
        };
        let missing = match behind.gradients.get()?.try_lock() {
            Ok(gradients) => self.missing(behind, &gradients),
            Err(_) => HANDED_OVER.into(),
        };
        Err(self.not_whole(behind.steps(), &missing))
    }

    fn not_whole(&self, step: u64, missing: &str) -> Error {
        Error::invalid(format!(
            "step {step} of a partial fusion has not been submitted whole: {missing} not yet"
        ))
    }

    fn check_length<T: Element>(&self, tensor: usize, buffer: &Buffer<T>) -> Result<()> {
        let (spec, bytes) = (self.set.spec(tensor), buffer.raw().len_bytes());
        let is_typed = [spec.dtype, DataType::U8].contains(&T::DTYPE);
        if is_typed && bytes as u64 == self.set.bytes(tensor) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{} has {} elements of {}, {} bytes; its buffer has {bytes} bytes, elements of {}: give that type or bytes (Buffer::cast)",
            self.set.label(tensor),
            spec.count,
            spec.dtype,
            self.set.bytes(tensor),
            T::DTYPE
        )))
    }

    fn missing(&self, fused: &Fused, gradients: &[Option<Submitted>]) -> String {
        let all = fused.tensors.iter().zip(gradients);
        let missing = all.filter(|(_, gradient)| gradient.is_none());
        self.label_all(&missing.map(|(tensor, _)| *tensor).collect::<Vec<_>>())
    }

    /// The label of the first tensor, and the number of the others.
    fn label_all(&self, tensors: &[usize]) -> String {
        match tensors {
            [] => "none".into(),
            [one] => self.set.label(*one),
            [one, more @ ..] => format!("{} and {} more", self.set.label(*one), more.len()),
        }
    }
}

impl PartialFusionOptions {
    fn check(&self, ranks: u32, set: &TensorSet) -> Result<()> {
        self.partial.check(ranks)?;
        if self.bytes_max == 0 || self.bytes_max > 1 << 40 {
            return Err(Error::invalid(format!(
                "PartialFusionOptions: bytes_max is {}: 1 to 2^40",
                self.bytes_max
            )));
        }
        let dtypes = set.dtypes();
        if self.step_atomic && dtypes.len() > 1 {
            return Err(Error::invalid(format!(
                "PartialFusionOptions: step_atomic with tensors of {} types ({} and {}): one decision is for one type; convert \
                 them, or leave each type its rounds",
                dtypes.len(),
                dtypes[0],
                dtypes[1]
            )));
        }
        Ok(())
    }

    /// A hash of the options that decide how tensors are grouped. [`PartialAllreduce::new`]
    /// compares the other options, for every fusion buffer.
    fn fingerprint(&self) -> u64 {
        mix(self.bytes_max ^ (u64::from(self.step_atomic) << 63))
    }

    fn limit(&self) -> u64 {
        if self.step_atomic {
            u64::MAX
        } else {
            self.bytes_max
        }
    }
}

/// Groups the tensors by fusion buffer. A buffer takes tensors of one type in the order of their
/// declaration, as many as fit.
fn group(set: &TensorSet, options: &PartialFusionOptions) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    // For each type, the index of the group that is being filled, and its bytes so far.
    let mut open: Vec<(DataType, usize, u64)> = Vec::new();
    for tensor in (0..set.len()).filter(|&tensor| set.bytes(tensor) > 0) {
        let (dtype, bytes) = (set.spec(tensor).dtype, set.bytes(tensor));
        let found = open.iter_mut().find(|(of, ..)| *of == dtype);
        match found {
            Some((_, group, filled)) if bytes <= options.limit() - *filled => {
                groups[*group].push(tensor);
                *filled += bytes;
                continue;
            }
            // A tensor that fills a buffer alone gets one of its own. The open group stays open.
            Some(_) if bytes >= options.limit() => {}
            Some((_, group, filled)) => (*group, *filled) = (groups.len(), bytes),
            None if bytes >= options.limit() => {}
            None => open.push((dtype, groups.len(), bytes)),
        }
        groups.push(vec![tensor]);
    }
    groups
}

impl Fused {
    fn steps(&self) -> u64 {
        self.steps.load(Ordering::Acquire)
    }

    fn of<T: Element>(&self, all: &[Buffer<T>]) -> Vec<Buffer<T>> {
        self.tensors
            .iter()
            .map(|&tensor| all[tensor].clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(tensors: &[(u64, DataType)]) -> TensorSet {
        let spec = |(i, &(count, dtype)): (usize, &(u64, DataType))| TensorSpec {
            name: format!("t{i}"),
            count,
            dtype,
        };
        TensorSet::new(tensors.iter().enumerate().map(spec).collect()).unwrap()
    }

    fn groups(tensors: &[(u64, DataType)], bytes_max: u64, step_atomic: bool) -> Vec<Vec<usize>> {
        let options = PartialFusionOptions {
            bytes_max,
            step_atomic,
            ..PartialFusionOptions::default()
        };
        group(&set(tensors), &options)
    }

    #[test]
    fn tensors_of_a_type_share_what_they_fit_into() {
        use DataType::{F16, F32};
        let tensors = [(2, F32), (0, F32), (4, F16), (2, F32), (9, F32), (1, F32)];
        assert_eq!(
            groups(&tensors, 16, false),
            [vec![0, 3], vec![2], vec![4], vec![5]]
        );
        assert_eq!(
            groups(&tensors, 20, false),
            [vec![0, 3, 5], vec![2], vec![4]]
        );
        assert_eq!(
            groups(&tensors, 1, false),
            [vec![0], vec![2], vec![3], vec![4], vec![5]]
        );
        assert!(groups(&[], 1, false).is_empty());
    }

    #[test]
    fn the_size_of_a_buffer_is_checked_at_its_bounds() {
        let one = set(&[(1, DataType::F32)]);
        let check = |bytes_max| {
            let options = PartialFusionOptions {
                bytes_max,
                ..PartialFusionOptions::default()
            };
            options.check(2, &one)
        };
        assert_eq!((check(1), check(1 << 40)), (Ok(()), Ok(())));
        for bytes in [0, (1 << 40) + 1] {
            let text = check(bytes).unwrap_err().to_string();
            assert!(
                text.contains(&format!("bytes_max is {bytes}: 1 to")),
                "{text}"
            );
        }
    }

    #[test]
    fn a_step_that_is_atomic_has_one_buffer() {
        let tensors = [(2, DataType::F32), (5, DataType::F32)];
        assert_eq!(groups(&tensors, 1, true), [vec![0, 1]]);
        let mixed = set(&[(1, DataType::F32), (1, DataType::F16)]);
        let options = PartialFusionOptions {
            step_atomic: true,
            ..PartialFusionOptions::default()
        };
        let error = options.check(2, &mixed).unwrap_err().to_string();
        assert!(error.contains("one decision is for one type"), "{error}");
    }
}
