#!/bin/bash
cd /workspace || exit 1
mkdir -p photos/images
