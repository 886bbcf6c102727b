"""Runs steps against an MCP server with the Python SDK, and prints what came as one JSON object.

usage: mcp_steps.py SERVER MODE STEPS
  SERVER  JSON: a list is a command for stdio; an object {"url", "headers"} is streamable HTTP
  MODE    as the SDK's Client has it: auto or legacy
  STEPS   JSON: a list of {"tool", "arguments"}, {"resource"} or {"prompt", "arguments"}
"""

import asyncio
import json
import sys

import mcp
from mcp.client.stdio import StdioServerParameters


def transport(server):
    if isinstance(server, list):
        return StdioServerParameters(command=server[0], args=server[1:])
    if not server.get("headers"):
        return server["url"]
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    return streamable_http_client(server["url"], http_client=httpx2.AsyncClient(headers=server["headers"]))


async def step(client, what):
    try:
        if "tool" in what:
            result = await client.call_tool(what["tool"], what.get("arguments", {}))
            return {"text": "\n".join(block.text for block in result.content), "is_error": bool(result.is_error)}
        if "resource" in what:
            result = await client.read_resource(what["resource"])
            return {"text": result.contents[0].text}
        result = await client.get_prompt(what["prompt"], what.get("arguments", {}))
        return {"text": result.messages[0].content.text}
    except mcp.MCPError as error:
        return {"protocol_error": str(error)}


async def main():
    server, mode, steps = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    async with mcp.Client(transport(server), mode=mode, read_timeout_seconds=60) as client:
        tools = (await client.list_tools()).tools
        templates = (await client.list_resource_templates()).resource_templates
        out = {
            "protocol": client.protocol_version,
            "server": client.server_info.name,
            "instructions": client.instructions,
            "tools": [tool.model_dump(by_alias=True, exclude_none=True) for tool in tools],
            "resources": [resource.uri for resource in (await client.list_resources()).resources],
            "templates": [template.uri_template for template in templates],
            "prompts": [prompt.name for prompt in (await client.list_prompts()).prompts],
            "steps": [await step(client, what) for what in steps],
        }
    print(json.dumps(out))


asyncio.run(main())
