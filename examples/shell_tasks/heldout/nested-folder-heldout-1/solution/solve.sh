#!/bin/bash
cd /workspace || exit 1
mkdir -p videos/projects
