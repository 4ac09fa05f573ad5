//! The deadline of a call.

use crate::status::to_tonic;
use crate::unary::{Boxed, HttpResponse};
use ferroflow_base::{Code, Status};
use http::HeaderMap;
use std::time::Duration;
use tokio::time::Instant;

/// How much earlier than the client's deadline the server may answer.
const EARLY: Duration = Duration::from_millis(20);

/// The error of a step that took too long, with gRPC's own message.
pub fn deadline_exceeded() -> Status {
    Status::new(Code::DeadlineExceeded, "Deadline Exceeded")
}

/// Returns the deadline of a call that arrives now with this timeout. It is earlier than that of tonic,
/// which reads the same header a moment before and answers CANCELLED.
pub(crate) fn deadline_within(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit - (limit / 5).min(EARLY))
}

/// Returns DEADLINE_EXCEEDED at the client's deadline, so that the result is the same whichever side's
/// timer fires first.
pub(crate) async fn with_deadline(
    deadline: Option<Instant>,
    answered: Boxed<HttpResponse>,
) -> HttpResponse {
    let Some(deadline) = deadline else {
        return answered.await;
    };
    let answered = tokio::time::timeout_at(deadline, answered).await;
    answered.unwrap_or_else(|_| to_tonic(&deadline_exceeded()).into_http())
}

/// Parses `grpc-timeout`: up to eight digits and a unit (gRPC over HTTP/2).
pub fn client_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(n * 3600)),
        "M" => Some(Duration::from_secs(n * 60)),
        "S" => Some(Duration::from_secs(n)),
        "m" => Some(Duration::from_millis(n)),
        "u" => Some(Duration::from_micros(n)),
        "n" => Some(Duration::from_nanos(n)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unary::unknown;

    #[test]
    fn timeouts_are_read() {
        let rows = [
            ("200m", Some(Duration::from_millis(200))),
            ("2S", Some(Duration::from_secs(2))),
            ("3M", Some(Duration::from_secs(180))),
            ("1H", Some(Duration::from_secs(3600))),
            ("7u", Some(Duration::from_micros(7))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("100000000n", None),
            ("12", None),
            ("m", None),
            ("", None),
            ("-1m", None),
        ];
        for (text, expected) in rows {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            assert_eq!(client_timeout(&headers), expected, "{text:?}");
        }
        assert_eq!(client_timeout(&HeaderMap::new()), None);
    }

    #[tokio::test]
    async fn a_late_answer_is_deadline_exceeded() {
        let never: Boxed<HttpResponse> = Box::pin(std::future::pending());
        let limit = Duration::from_millis(5);
        assert!(deadline_within(limit).unwrap() < Instant::now() + limit);
        let answer = with_deadline(deadline_within(limit), never).await;
        assert_eq!(answer.headers()["grpc-status"], "4");
        let later = deadline_within(Duration::from_secs(60));
        let answer = with_deadline(later, unknown()).await;
        assert_eq!(answer.headers()["grpc-status"], "12");
    }
}
