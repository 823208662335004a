// Sends spans with OpenTelemetry's own exporter: node send.mjs '{"url", "encoding", "compression", "headers", "resource", "spans"}'.
// Prints the ids of what it sent, or fails with what the exporter said.
import { context, diag, DiagLogLevel, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import { OTLPTraceExporter as JSONExporter } from "@opentelemetry/exporter-trace-otlp-http";
import { OTLPTraceExporter as ProtobufExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { BatchSpanProcessor, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";

const asked = JSON.parse(process.argv[2]);
diag.setLogger({ error: console.error, warn: console.error, info() {}, debug() {}, verbose() {} }, DiagLogLevel.WARN);

const Exporter = asked.encoding === "json" ? JSONExporter : ProtobufExporter;
const exporter = new Exporter({ url: asked.url, headers: asked.headers, compression: asked.compression, timeoutMillis: 30000 });
const provider = new NodeTracerProvider({
  resource: resourceFromAttributes(asked.resource),
  spanProcessors: [new BatchSpanProcessor(exporter, { exportTimeoutMillis: 30000, maxQueueSize: 100000 })],
});
const tracer = provider.getTracer("node-library", "3.1");

const sent = [];
const root = tracer.startSpan("root");
const within = trace.setSpan(context.active(), root);
for (let n = 0; n < asked.spans; n++) {
  const span = tracer.startSpan(`span ${n}`, { kind: SpanKind.CLIENT, attributes: { n, "gen_ai.operation.name": "chat" } }, within);
  span.setAttribute("list", ["a", "é"]);
  span.setAttribute("float", 0.5);
  span.addEvent("said", { word: "hello" });
  span.addLink({ context: root.spanContext(), attributes: { why: "root" } });
  span.setStatus({ code: SpanStatusCode.ERROR, message: "it broke" });
  span.end();
  sent.push(span.spanContext().spanId);
}
root.end();
await provider.forceFlush();
await provider.shutdown();
console.log(JSON.stringify({ trace: root.spanContext().traceId, root: root.spanContext().spanId, spans: sent }));
