"""OTLP over HTTP, the traces half of it: https://opentelemetry.io/docs/specs/otlp/#otlphttp."""
