//! `ApiVersions`: what is spoken (KIP-35, KIP-511).

use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};

use crate::protocol::{ResponseError, response};

/// The first version in which a client says what it is.
const SAYS_WHAT_IT_IS: i16 = 3;

pub(super) fn handle(version: i16, request: &ApiVersionsRequest) -> ApiVersionsResponse {
    let named = [
        &request.client_software_name,
        &request.client_software_version,
    ];
    if version >= SAYS_WHAT_IT_IS && !named.iter().all(|text| is_software_name(text)) {
        return response::api_versions(ResponseError::InvalidRequest.code());
    }
    response::api_versions(0)
}

/// Kafka's rule: letters, digits, hyphens and dots, a letter or digit at both ends.
fn is_software_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(plain)
        && text.ends_with(plain)
        && text.chars().all(|c| plain(c) || matches!(c, '-' | '.'))
}

#[cfg(test)]
mod tests {
    use super::is_software_name;

    #[test]
    fn software_names_follow_kafkas_rule() {
        for name in [
            "librdkafka",
            "2.0.2",
            "a",
            "kafka-python",
            "apache-kafka-java",
        ] {
            assert!(is_software_name(name), "{name}");
        }
        for name in ["", "-a", "a-", ".", "a b", "a_b", "ä"] {
            assert!(!is_software_name(name), "{name}");
        }
    }
}
