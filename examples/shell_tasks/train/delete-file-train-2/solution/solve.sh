#!/bin/bash
cd /workspace || exit 1
rm tasks.log
