//! Selection against its definition, and against a sort.

use super::*;
use crate::kernel::access;
use crate::memory::Region;
use crate::memory::View;
use proptest::prelude::*;

fn region(values: &[f32]) -> Region {
    let region = Region::private((4 * values.len()).max(1)).unwrap();
    access::write(region.view(), 0, bytemuck::cast_slice(values));
    region
}

fn view(region: &Region, count: usize) -> View {
    region.view().part(0, 4 * count)
}

fn read(view: View) -> Vec<u32> {
    let mut values = vec![0u32; view.len_bytes() / 4];
    access::read(view, 0, bytemuck::cast_slice_mut(&mut values));
    values
}

/// The definition: sort everything.
fn sorted_top(values: &[f32], k: usize) -> Vec<u64> {
    let is_candidate = |v: &f32| *v != 0.0 && v.is_finite();
    let mut all: Vec<usize> = (0..values.len())
        .filter(|i| is_candidate(&values[*i]))
        .collect();
    all.sort_by_key(|&i| (std::cmp::Reverse(magnitude(values[i])), i));
    all.truncate(k);
    all.sort_unstable();
    all.into_iter().map(|i| i as u64).collect()
}

/// Values of every kind: few that repeat, denormals, both zeros, what is not finite.
fn any_value() -> impl Strategy<Value = f32> {
    prop_oneof![
        6 => -1000.0f32..1000.0,
        2 => (-3i32..4).prop_map(|v| v as f32),
        1 => prop_oneof![Just(0.0f32), Just(-0.0), Just(1e-40), Just(-1e-40), Just(f32::MAX), Just(f32::MIN_POSITIVE)],
        1 => prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY), Just(1e30)],
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_instruction_set_selects_what_the_definition_does(
        pairs in proptest::collection::vec((any_value(), any_value()), 0..300),
        floor in prop_oneof![Just(1u32), Just(0x3f80_0000), 1u32..0x7f80_0000],
        kind in 0..3,
    ) {
        let (a, b): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let run = |isa| {
            let (first, second) = (region(&a), region(&b));
            let (va, vb) = (view(&first, a.len()), view(&second, b.len()));
            let source = if kind == 0 { Source::of(va) } else { Source::sum(va, vb) };
            let mut picks = Picks::default();
            let scan = scan(isa, &[source, source], kind == 2, floor, usize::MAX, &mut picks);
            (picks.indices, picks.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), scan, read(va))
        };
        let right = run(Isa::Scalar);
        for isa in [Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| isa.is_present()) {
            prop_assert_eq!(&run(isa), &right);
        }
    }

    #[test]
    fn the_top_is_that_of_a_sort(
        values in proptest::collection::vec(any_value(), 0..400),
        k in 0usize..450,
        hint in proptest::option::of(any_value()),
        cut in 0usize..400,
    ) {
        let memory = region(&values);
        let cut = cut.min(values.len());
        let whole = view(&memory, values.len());
        let sources = [Source::of(whole.part(0, 4 * cut)), Source::of(whole.part(4 * cut, 4 * (values.len() - cut)))];
        let right = sorted_top(&values, k);
        let mut picks = Picks::default();
        select_top(&sources, k, hint.map(magnitude), &mut picks);
        prop_assert_eq!(&picks.indices, &right);
        let not_finite = values.iter().filter(|v| !v.is_finite()).count() as u64;
        prop_assert_eq!(collect(&sources, 1, usize::MAX, &mut Picks::default()).not_finite, not_finite);
    }
}

#[test]
fn an_all_equal_vector_selects_k_by_index() {
    // More than a sample's limit has room for, so that the histograms decide.
    let memory = region(&vec![-2.5; 400_000]);
    let mut picks = Picks::default();
    let (least, _) = select_top(&[Source::of(memory.view())], 1000, None, &mut picks);
    assert_eq!(least, magnitude(2.5));
    assert_eq!(picks.indices, (0..1000).collect::<Vec<u64>>());
}

#[test]
fn two_values_and_their_ties_are_settled_by_index() {
    let values: Vec<f32> = (0..300_000)
        .map(|i| if i % 3 == 0 { 1.0 } else { -1.5 })
        .collect();
    let memory = region(&values);
    for k in [1, 70_000, 200_000, 200_001, 250_000, 300_000, 400_000] {
        let mut picks = Picks::default();
        select_top(&[Source::of(memory.view())], k, None, &mut picks);
        assert_eq!(picks.indices, sorted_top(&values, k), "{k}");
    }
}

#[test]
fn a_pass_over_its_limit_still_adds_everything() {
    let (a, b) = (region(&[1.0; 5000]), region(&[2.0; 5000]));
    let mut picks = Picks::default();
    let scan = accumulate(&[Source::sum(a.view(), b.view())], 1, 10, &mut picks);
    assert!(scan.is_over && picks.len() <= 10);
    assert!(read(a.view()).iter().all(|bits| *bits == 3.0f32.to_bits()));
}

#[test]
fn what_is_not_finite_is_not_absorbed() {
    let (a, b) = (region(&[1.0; 40]), region(&[f32::MAX; 40]));
    access::store(b.view(), 17, f32::NAN);
    access::store(a.view(), 33, f32::MAX);
    let mut picks = Picks::default();
    let scan = accumulate(&[Source::sum(a.view(), b.view())], 1, 40, &mut picks);
    assert_eq!((scan.not_finite, picks.len()), (2, 38));
    assert_eq!(
        (
            access::load::<f32>(a.view(), 17),
            access::load::<f32>(a.view(), 33)
        ),
        (1.0, f32::MAX)
    );
}

#[test]
fn moments_and_estimates_survive_degenerate_vectors() {
    for values in [
        vec![],
        vec![3.0f32],
        vec![2.0; 100],
        vec![-1.0, -1.0, f32::NAN, -1.0],
    ] {
        let memory = region(&values);
        let estimate =
            gaussian_magnitude(moments(&[Source::of(view(&memory, values.len()))]), 0.01);
        assert!(
            (1..MAGNITUDE_INFINITE).contains(&estimate),
            "{values:?}: {estimate}"
        );
    }
}
