//! The store without connections: what it answers whom, its bounds, and bytes that are no requests.

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn put(key: &str, value: &[u8]) -> Request {
    Request::Put(key.into(), value.to_vec())
}

#[test]
fn a_value_is_put_once_and_those_who_wait_for_it_get_it() {
    let mut store = Store::default();
    let now = Time(5);
    assert!(
        store
            .handle(1, Request::Wait("a".into(), LONG), now)
            .is_empty()
    );
    assert!(
        store
            .handle(2, Request::Wait("b".into(), LONG), now)
            .is_empty()
    );
    assert_eq!(
        store.handle(3, Request::Get("a".into()), now),
        [(3, Answer::Missing)]
    );
    assert_eq!(
        store.handle(3, put("a", b"x"), now),
        [(3, Answer::Done), (1, Answer::Value(b"x".to_vec()))]
    );
    assert_eq!(
        store.handle(4, Request::Wait("a".into(), LONG), now),
        [(4, Answer::Value(b"x".to_vec()))]
    );
    assert_eq!(store.handle(4, put("a", b"x"), now), [(4, Answer::Done)]);
    let again = store.handle(4, put("a", b"y"), now);
    assert!(matches!(&again[..], [(4, Answer::Refused(text))] if text.contains("another value")));
}

#[test]
fn a_wait_ends_with_its_time() {
    let mut store = Store::default();
    store.handle(
        1,
        Request::Wait("a".into(), Duration::from_nanos(10)),
        Time(5),
    );
    store.handle(2, Request::Wait("a".into(), LONG), Time(5));
    assert!(store.expire(Time(14)).is_empty());
    assert_eq!(store.expire(Time(15)), [(1, Answer::Late)]);
    assert_eq!(store.handle(3, put("a", b""), Time(16)).len(), 2);
}

#[test]
fn what_goes_beyond_a_bound_is_refused_and_changes_nothing() {
    let mut store = Store::default();
    let long_key = "k".repeat(KEY_BYTES_MAX + 1);
    for request in [put(&long_key, b""), put("k", &[0; VALUE_BYTES_MAX + 1])] {
        let answers = store.handle(0, request, Time(0));
        assert!(matches!(&answers[..], [(0, Answer::Refused(text))] if text.contains("at most")));
    }
    for index in 0..KEYS_MAX {
        let answers = store.handle(0, put(&index.to_string(), b"v"), Time(0));
        assert_eq!(answers, [(0, Answer::Done)]);
    }
    let answers = store.handle(0, put("more", b"v"), Time(0));
    assert!(matches!(&answers[..], [(0, Answer::Refused(text))] if text.contains("no more fit")));
    assert_eq!(store.get("more"), None);
    for rank in 0..WAITERS_MAX as Rank {
        assert!(
            store
                .handle(rank, Request::Wait("more".into(), LONG), Time(0))
                .is_empty()
        );
    }
    let answers = store.handle(0, Request::Wait("more".into(), LONG), Time(0));
    assert!(matches!(&answers[..], [(0, Answer::Refused(text))] if text.contains("wait already")));
}

#[test]
fn requests_and_answers_survive_and_any_bytes_are_parsed_or_refused() {
    let requests = [
        put("key", &[7; VALUE_BYTES_MAX]),
        put("", b""),
        Request::Get("key".into()),
        Request::Wait("k".repeat(KEY_BYTES_MAX), LONG),
    ];
    let answers = [
        Answer::Done,
        Answer::Value(vec![1; VALUE_BYTES_MAX]),
        Answer::Missing,
        Answer::Late,
        Answer::Refused("why".into()),
    ];
    for request in &requests {
        assert!(request.emit().len() <= MESSAGE_BYTES_MAX);
        assert_eq!(Request::parse(&request.emit()).as_ref(), Ok(request));
    }
    for answer in &answers {
        assert!(answer.emit().len() <= MESSAGE_BYTES_MAX);
        assert_eq!(Answer::parse(&answer.emit()).as_ref(), Ok(answer));
    }
    let mut prng = crate::prng::Prng::new(11);
    let (mut parsed, mut refused) = (0, 0);
    for turn in 0..20_000 {
        let mut bytes = requests[turn % requests.len()].emit();
        bytes.truncate(1 + prng.below(40) as usize);
        let at = prng.below(bytes.len() as u64) as usize;
        bytes[at] = prng.next_u64() as u8;
        match Request::parse(&bytes) {
            Ok(_) => parsed += 1,
            Err(_) => refused += 1,
        }
        let _ = Answer::parse(&bytes);
    }
    assert!(parsed > 500 && refused > 500, "{parsed} {refused}");
    assert!(Request::parse(&[]).is_err() && Answer::parse(&[]).is_err());
}
