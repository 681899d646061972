// One conversation by a vendor's JavaScript SDK: `node talk.mjs chat|responses|messages|gemini`, with URL and KEY in the
// environment. The policy calls two tools in a streamed turn, gets their results, and ends in a plain one. Prints what
// the SDK saw as one JSON line. `gemini-broken`: only the error of a streamed answer that breaks off, "" where none was
// raised.
import Anthropic from "@anthropic-ai/sdk";
import { GoogleGenAI } from "@google/genai";
import OpenAI from "openai";

const { URL: url, KEY: key } = process.env;
const parameters = { type: "object", properties: { command: { type: "string" } } };
const description = "Runs a command.";
const options = { apiKey: key, maxRetries: 0, timeout: 20_000 };
const vendors = { chat, responses, messages, gemini, "gemini-broken": geminiBroken };

async function chat() {
  const client = new OpenAI({ ...options, baseURL: `${url}/v1` });
  const tools = [{ type: "function", function: { name: "bash", description, parameters } }];
  const history = [{ role: "user", content: "hi" }];
  const asked = { model: "m", tools, messages: history };
  const pieces = [];
  const stream = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
  stream.on("content", (piece) => pieces.push(piece));
  const first = await stream.finalChatCompletion();
  const turn = first.choices[0].message;
  history.push(turn);
  for (const call of turn.tool_calls) history.push({ role: "tool", tool_call_id: call.id, content: "ok" });
  const last = await client.chat.completions.create(asked);
  const refused = () => new OpenAI({ ...options, apiKey: "wrong", baseURL: `${url}/v1` }).chat.completions.create(asked);
  return {
    pieces: pieces.join(""),
    calls: turn.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]),
    finish: [first.choices[0].finish_reason, last.choices[0].finish_reason],
    text: last.choices[0].message.content,
    output_tokens: [first.usage.completion_tokens, last.usage.completion_tokens],
    ...(await errors(() => client.chat.completions.create({ ...asked, n: 3 }), refused)),
  };
}

async function responses() {
  const client = new OpenAI({ ...options, baseURL: `${url}/v1` });
  const tools = [{ type: "function", name: "bash", description, parameters, strict: false }];
  const input = [{ role: "user", content: "hi" }];
  const asked = { model: "m", tools, input, store: false, include: ["reasoning.encrypted_content"] };
  const pieces = [];
  const stream = client.responses.stream(asked);
  stream.on("response.output_text.delta", (event) => pieces.push(event.delta));
  const first = await stream.finalResponse();
  const calls = first.output.filter((item) => item.type === "function_call");
  input.push(...first.output);
  for (const call of calls) input.push({ type: "function_call_output", call_id: call.call_id, output: "ok" });
  const last = await client.responses.create(asked);
  const refused = () => new OpenAI({ ...options, apiKey: "wrong", baseURL: `${url}/v1` }).responses.create(asked);
  return {
    pieces: pieces.join(""),
    calls: calls.map((call) => [call.name, JSON.parse(call.arguments)]),
    finish: [first.status, last.status],
    text: last.output_text,
    output_tokens: [first.usage.output_tokens, last.usage.output_tokens],
    ...(await errors(() => client.responses.create({ ...asked, background: true }), refused)),
  };
}

async function messages() {
  const client = new Anthropic({ ...options, baseURL: url });
  const tools = [{ name: "bash", description, input_schema: parameters }];
  const history = [{ role: "user", content: "hi" }];
  const asked = { model: "m", max_tokens: 500, tools, messages: history };
  const counted = await client.messages.countTokens({ model: "m", tools, messages: history });
  const pieces = [];
  const stream = client.messages.stream(asked);
  stream.on("text", (piece) => pieces.push(piece));
  const first = await stream.finalMessage();
  const calls = first.content.filter((block) => block.type === "tool_use");
  history.push({ role: "assistant", content: first.content });
  history.push({ role: "user", content: calls.map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: "ok" })) });
  const last = await client.messages.create(asked);
  const refused = () => new Anthropic({ ...options, apiKey: "wrong", baseURL: url }).messages.create(asked);
  return {
    pieces: pieces.join(""),
    calls: calls.map((call) => [call.name, call.input]),
    finish: [first.stop_reason, last.stop_reason],
    text: last.content[0].text,
    output_tokens: [first.usage.output_tokens, last.usage.output_tokens],
    counted: counted.input_tokens - first.usage.input_tokens,
    ...(await errors(() => client.messages.create({ ...asked, max_tokens: 0 }), refused)),
  };
}

async function gemini() {
  const made = (apiKey) => new GoogleGenAI({ apiKey, httpOptions: { baseUrl: url, timeout: 20_000 } });
  const client = made(key);
  const config = { tools: [{ functionDeclarations: [{ name: "bash", description, parametersJsonSchema: parameters }] }] };
  const contents = [{ role: "user", parts: [{ text: "hi" }] }];
  const asked = { model: "m", contents, config };
  const parts = [];
  let end;
  for await (const chunk of await client.models.generateContentStream(asked)) {
    parts.push(...(chunk.candidates?.[0]?.content?.parts ?? []));
    end = chunk;
  }
  const calls = parts.flatMap((part) => part.functionCall ?? []);
  contents.push({ role: "model", parts });
  const answered = calls.map(({ id, name }) => ({ functionResponse: { id, name, response: { output: "ok" } } }));
  contents.push({ role: "user", parts: answered });
  const last = await client.models.generateContent(asked);
  const bad = () => client.models.generateContent({ ...asked, config: { ...config, candidateCount: 3 } });
  return {
    pieces: parts.filter((part) => part.text && !part.thought).map((part) => part.text).join(""),
    calls: calls.map((call) => [call.name, call.args]),
    finish: [end.candidates[0].finishReason, last.candidates[0].finishReason],
    text: last.text,
    output_tokens: [end.usageMetadata, last.usageMetadata].map((usage) => usage.candidatesTokenCount + (usage.thoughtsTokenCount ?? 0)),
    ...(await errors(bad, () => made("wrong").models.generateContent(asked))),
  };
}

async function geminiBroken() {
  const client = new GoogleGenAI({ apiKey: key, httpOptions: { baseUrl: url, timeout: 20_000 } });
  let text = "";
  try {
    for await (const chunk of await client.models.generateContentStream({ model: "m", contents: "hi" })) {
      text += chunk.text ?? "";
    }
  } catch (error) {
    return { text, error: error.message };
  }
  return { text, error: "" };
}

async function errors(bad, refused) {
  const seen = async (ask) => ask().then(() => "no error", (error) => [error.constructor.name, error.status]);
  return { bad: await seen(bad), refused: await seen(refused) };
}

console.log(JSON.stringify(await vendors[process.argv[2]]()));
