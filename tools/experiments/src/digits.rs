//! [`Digits`]: images of hand-written digits (tests/data/optdigits), a fifth of them kept for the
//! test.

use linerate::unstable::prng::Prng;

const CSV: &str = include_str!("../../../tests/data/optdigits/digits.csv");

/// Pixels of an image.
pub const PIXELS: usize = 64;
/// Digits.
pub const CLASSES: usize = 10;
/// The brightest pixel of the data.
const BRIGHTEST: f32 = 16.0;
/// One image of this many is kept for the test.
const TEST_SHARE: usize = 5;
/// Of the order in which images are drawn into the two parts: the same for every experiment.
const SPLIT_SEED: u64 = 0x6f70_7464;

/// One image, pixels from 0 to 1, and what it shows.
#[derive(Clone, Debug)]
pub struct Image {
    pub pixels: [f32; PIXELS],
    pub digit: usize,
}

/// The two parts of the data.
#[derive(Debug)]
pub struct Digits {
    pub training: Vec<Image>,
    pub test: Vec<Image>,
}

impl Digits {
    /// The carried data.
    pub fn load() -> Digits {
        let mut images: Vec<Image> = CSV.lines().map(parse_line).collect();
        shuffle(&mut images, &mut Prng::new(SPLIT_SEED));
        let test = images.split_off(images.len() - images.len() / TEST_SHARE);
        Digits {
            training: images,
            test,
        }
    }
}

/// Brings values into an order that a generator decides.
pub fn shuffle<T>(values: &mut [T], prng: &mut Prng) {
    for end in (1..values.len()).rev() {
        values.swap(end, prng.below(end as u64 + 1) as usize);
    }
}

fn parse_line(line: &str) -> Image {
    let mut values = line.split(',').map(|value| {
        let value: u8 = value.parse().expect("digits.csv holds small numbers");
        value
    });
    let mut pixels = [0.0; PIXELS];
    for pixel in &mut pixels {
        *pixel = f32::from(values.next().expect("64 pixels")) / BRIGHTEST;
    }
    Image {
        pixels,
        digit: usize::from(values.next().expect("a digit")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_in_one_part() {
        let digits = Digits::load();
        assert_eq!((digits.training.len(), digits.test.len()), (1438, 359));
        // The published counts of each digit.
        let mut counts = [0; CLASSES];
        for image in digits.training.iter().chain(&digits.test) {
            counts[image.digit] += 1;
            assert!(image.pixels.iter().all(|p| (0.0..=1.0).contains(p)));
        }
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    }

    #[test]
    fn a_shuffle_keeps_every_value() {
        let mut values: Vec<u32> = (0..100).collect();
        shuffle(&mut values, &mut Prng::new(1));
        assert!(values.windows(2).any(|pair| pair[0] > pair[1]));
        values.sort_unstable();
        assert_eq!(values, Vec::from_iter(0..100));
    }
}
